/* What the generated answers share with fake_nvml.c: every call is counted and obeys the world's rules. */
int fake_default(const char *name, void **symbol, const void *handle);
