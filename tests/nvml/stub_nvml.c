/* Stands for the library that the CUDA toolkit brings in its `stubs` folder, which is for linking only.
 *
 * It warns on stderr and initialises nothing; its error texts are the warning. The code it returns differs by release,
 * so what recognises it must not rest on the code.
 */
#include <stdio.h>

static const char warning[] =
    "\n!!!!!!!!!!!!!!!!!!!!\nWARNING:\n\nRun with the libnvidia-ml.so of your NVIDIA Display Driver.\n"
    "libnvidia-ml.so in GDK package is a stub library, for build purposes only.\n!!!!!!!!!!!!!!!!!!!!\n";

static int refuse(void) {
    static int warned;
    if (!warned++) fputs(warning, stderr);
    return 12;
}
int nvmlInit(void) { return refuse(); }
int nvmlInit_v2(void) { return refuse(); }
int nvmlInitWithFlags(unsigned flags) { (void)flags; return refuse(); }
const char *nvmlErrorString(int code) { (void)code; return warning; }
