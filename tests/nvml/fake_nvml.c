/* A fake NVIDIA management library over a world that is one mapped file (see layout.py, world.py).
 *
 * Rules: it answers as the driver does, quirks included (two-call sizes, versioned structures, reference-counted
 * init, memory v1 that counts the reserved part as used). It must never need a GPU, and never invent a process:
 * what it lists is alive under that pid and start time, or was put there as a phantom.
 * Symbols that are not here come from a generated file and answer "not supported".
 */
#define _GNU_SOURCE
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "world.h"
#include "fake_nvml.h"

enum {
    OK = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9, TIMED_OUT = 10, GPU_IS_LOST = 15, VERSION_MISMATCH = 25
};

typedef int nvmlReturn_t;
typedef struct { uint32_t number; } Handle; /* its address is the handle that callers hold */
typedef struct { uint64_t total, free, used; } Memory;
typedef struct { uint32_t version; uint64_t total, reserved, free, used; } Memory2;
typedef struct { char legacy[16]; uint32_t domain, bus, device, pci_id, subsystem_id; char id[32]; } Pci;
typedef struct { uint32_t pid; uint64_t memory_bytes; uint32_t gpu_instance, compute_instance; } ProcessInfo;
typedef struct { uint32_t gpu, memory; } Utilization;
typedef struct { uint32_t version, sensor; int32_t celsius; } Temperature;
typedef struct { uint32_t counts[8]; uint64_t memory_mib; } Attributes;
typedef struct { void *device; uint64_t type, data; uint32_t gpu_instance, compute_instance; } EventData;
typedef struct { uint64_t seen, gpus; } EventSet;

_Static_assert(sizeof(Memory2) == 40 && sizeof(Pci) == 68 && sizeof(ProcessInfo) == 24, "as the driver's");
_Static_assert(sizeof(Attributes) == 40 && sizeof(EventData) == 32 && sizeof(Temperature) == 12, "as the driver's");

static WorldLayout *world;
static int initialized;
static Handle gpu_handles[GPUS_MAX], mig_handles[MIGS_MAX];
static pthread_once_t attached = PTHREAD_ONCE_INIT;
static pthread_mutex_t counters = PTHREAD_MUTEX_INITIALIZER;

static void attach(void) {
    const char *path = getenv("FAKE_NVML_WORLD");
    int file = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (file < 0) return;
    WorldLayout *mapped = mmap(NULL, sizeof(WorldLayout), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (mapped == MAP_FAILED || mapped->magic != WORLD_MAGIC || mapped->bytes != sizeof(WorldLayout)) return;
    for (uint32_t i = 0; i < GPUS_MAX; i++) gpu_handles[i].number = i;
    for (uint32_t i = 0; i < MIGS_MAX; i++) mig_handles[i].number = i;
    world = mapped;
}

static int gpu_of(const void *handle) {
    const Handle *h = handle;
    return h >= gpu_handles && h < gpu_handles + GPUS_MAX ? (int)h->number : -1;
}

static int mig_of(const void *handle) {
    const Handle *h = handle;
    return h >= mig_handles && h < mig_handles + MIGS_MAX ? (int)h->number : -1;
}

static void wait_ms(uint32_t ms) {
    struct timespec pause = {ms / 1000, (ms % 1000) * 1000000L};
    while (nanosleep(&pause, &pause) != 0 && errno == EINTR) {}
}

/* Slots of the counters are taken in the order of first calls, under a lock of this process; between processes the
 * name is written last, so two processes that race for a slot may both look again, and none counts for another. */
static Symbol *symbol_of(const char *name) {
    for (int i = 0; i < SYMBOLS_MAX; i++) {
        Symbol *symbol = &world->symbols[i];
        if (strcmp(symbol->name, name) == 0) return symbol;
        if (symbol->name[0] == 0) {
            char first = 0;
            if (!__atomic_compare_exchange_n(&symbol->name[0], &first, '?', 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
                while (__atomic_load_n(&symbol->name[0], __ATOMIC_SEQ_CST) == '?') wait_ms(1);
            else {
                strncpy(symbol->name + 1, name + 1, sizeof symbol->name - 2);
                __atomic_store_n(&symbol->name[0], name[0], __ATOMIC_SEQ_CST);
            }
            if (strcmp(symbol->name, name) == 0) return symbol;
        }
    }
    return NULL;
}

static int applies(Rule *rule, const char *name, int gpu) {
    if (!rule->active || strcmp(rule->symbol, name) != 0) return 0;
    if (rule->gpu != RULE_ALL && rule->gpu != (gpu < 0 ? RULE_SYSTEM : gpu)) return 0;
    uint32_t call = __atomic_add_fetch(&rule->calls, 1, __ATOMIC_SEQ_CST);
    return rule->call == 0 || rule->call == call;
}

/* What every call goes through: counted, delayed, hung, failed. `garbage` is set where strings shall be broken. */
static nvmlReturn_t enter(const char *name, Symbol **symbol, const void *handle, int needs_init, int *garbage) {
    pthread_once(&attached, attach);
    if (!world) return DRIVER_NOT_LOADED;
    pthread_mutex_lock(&counters);
    if (!*symbol) *symbol = symbol_of(name);
    pthread_mutex_unlock(&counters);
    if (*symbol) __atomic_add_fetch(&(*symbol)->calls, 1, __ATOMIC_SEQ_CST);
    if (needs_init && !initialized) return UNINITIALIZED;
    int mig = mig_of(handle), gpu = mig >= 0 ? (int)world->migs[mig].gpu : gpu_of(handle);
    nvmlReturn_t error = OK;
    for (uint32_t i = 0; i < world->rule_count; i++) {
        Rule *rule = &world->rules[i];
        if (!applies(rule, name, gpu)) continue;
        if (rule->delay_ms) wait_ms(rule->delay_ms);
        while (rule->hang && rule->active) wait_ms(5);
        if (rule->garbage && garbage) *garbage = 1;
        if (rule->error) error = (nvmlReturn_t)rule->error;
    }
    if (error) return error;
    return gpu >= 0 && world->gpus[gpu].lost ? GPU_IS_LOST : OK;
}

nvmlReturn_t fake_default(const char *name, void **symbol, const void *handle) {
    nvmlReturn_t entered = enter(name, (Symbol **)symbol, handle, 1, NULL);
    return entered ? entered : NOT_SUPPORTED;
}

#define ENTER_AS(handle, needs_init) \
    int garbage = 0; \
    do { \
        static Symbol *symbol; \
        nvmlReturn_t entered = enter(__func__, &symbol, handle, needs_init, &garbage); \
        if (entered) return entered; \
        (void)garbage; \
    } while (0)
#define ENTER() ENTER_AS(NULL, 1)
#define ENTER_GPU(handle) \
    ENTER_AS(handle, 1); \
    if (gpu_of(handle) < 0) return INVALID_ARGUMENT; \
    Gpu *gpu = &world->gpus[gpu_of(handle)]; \
    (void)gpu

static nvmlReturn_t put(char *to, uint32_t room, const char *text, int garbage) {
    size_t length = strlen(text);
    if (!to) return INVALID_ARGUMENT;
    if (length + 1 > room) return INSUFFICIENT_SIZE;
    memcpy(to, text, length + 1);
    if (garbage && length > 2) memcpy(to + length - 3, "\xff\xc3\x28", 3);
    return OK;
}

/* System. */
static nvmlReturn_t initialize(void) {
    if (world->init_error) return (nvmlReturn_t)world->init_error;
    __atomic_add_fetch(&initialized, 1, __ATOMIC_SEQ_CST);
    return OK;
}
nvmlReturn_t nvmlInit(void) { ENTER_AS(NULL, 0); return initialize(); }
nvmlReturn_t nvmlInit_v2(void) { ENTER_AS(NULL, 0); return initialize(); }
nvmlReturn_t nvmlInitWithFlags(uint32_t flags) { ENTER_AS(NULL, 0); (void)flags; return initialize(); }
nvmlReturn_t nvmlShutdown(void) {
    ENTER();
    __atomic_sub_fetch(&initialized, 1, __ATOMIC_SEQ_CST);
    return OK;
}
const char *nvmlErrorString(nvmlReturn_t code) {
    switch (code) {
    case 0: return "Success";
    case 1: return "Uninitialized";
    case 2: return "Invalid Argument";
    case 3: return "Not Supported";
    case 4: return "Insufficient Permissions";
    case 6: return "Not Found";
    case 9: return "Driver Not Loaded";
    case 15: return "GPU is lost";
    case 16: return "GPU requires reset";
    case 18: return "Driver/library version mismatch";
    case 25: return "Argument version mismatch";
    default: return "Unknown Error";
    }
}
nvmlReturn_t nvmlSystemGetDriverVersion(char *to, uint32_t room) {
    ENTER();
    return put(to, room, world->driver_version, garbage);
}
nvmlReturn_t nvmlSystemGetNVMLVersion(char *to, uint32_t room) {
    ENTER();
    return put(to, room, world->nvml_version, garbage);
}
nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *to) { ENTER(); *to = (int)world->cuda_version; return OK; }
nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *to) { ENTER(); *to = (int)world->cuda_version; return OK; }
nvmlReturn_t nvmlSystemGetProcessName(uint32_t pid, char *to, uint32_t room) {
    ENTER();
    char path[64], text[512] = "";
    snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return NOT_FOUND;
    ssize_t count = read(file, text, sizeof text - 1);
    close(file);
    return count > 0 ? put(to, room, text, garbage) : NOT_FOUND;
}

/* Enumeration. */
static nvmlReturn_t count_gpus(uint32_t *count) { *count = world->order_count; return OK; }
nvmlReturn_t nvmlDeviceGetCount(uint32_t *count) { ENTER(); return count_gpus(count); }
nvmlReturn_t nvmlDeviceGetCount_v2(uint32_t *count) { ENTER(); return count_gpus(count); }

static nvmlReturn_t hand_out(uint32_t number, void **handle) {
    if (world->gpus[number].lost) return GPU_IS_LOST;
    *handle = &gpu_handles[number];
    return OK;
}
static nvmlReturn_t by_index(uint32_t index, void **handle) {
    return index < world->order_count ? hand_out(world->order[index], handle) : INVALID_ARGUMENT;
}
/* The GPU that a call by index is about, so that a rule for one GPU meets it here too. */
static void *indexed(uint32_t index) {
    pthread_once(&attached, attach);
    return world && index < world->order_count ? &gpu_handles[world->order[index]] : NULL;
}
nvmlReturn_t nvmlDeviceGetHandleByIndex(uint32_t index, void **handle) {
    ENTER_AS(indexed(index), 1);
    return by_index(index, handle);
}
nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(uint32_t index, void **handle) {
    ENTER_AS(indexed(index), 1);
    return by_index(index, handle);
}
typedef int Match(const Gpu *gpu, const char *text);
static int is_uuid(const Gpu *gpu, const char *text) { return strcmp(gpu->uuid, text) == 0; }
static int is_serial(const Gpu *gpu, const char *text) { return strcmp(gpu->serial, text) == 0; }
static int is_bus_id(const Gpu *gpu, const char *text) {
    size_t have = strlen(gpu->pci_bus_id), asked = strlen(text); /* the domain may have four digits or eight */
    return asked >= 10 && have >= 10 && strcasecmp(gpu->pci_bus_id + have - 10, text + asked - 10) == 0;
}
static nvmlReturn_t find(Match *match, const char *text, void **handle) {
    for (uint32_t i = 0; i < world->order_count; i++)
        if (match(&world->gpus[world->order[i]], text)) return hand_out(world->order[i], handle);
    return NOT_FOUND;
}
nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, void **handle) {
    ENTER();
    for (uint32_t i = 0; i < world->mig_count; i++)
        if (world->migs[i].present && strcmp(world->migs[i].uuid, uuid) == 0) {
            *handle = &mig_handles[i];
            return OK;
        }
    return find(is_uuid, uuid, handle);
}
nvmlReturn_t nvmlDeviceGetHandleBySerial(const char *serial, void **handle) {
    ENTER();
    return find(is_serial, serial, handle);
}
nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *id, void **handle) {
    ENTER();
    return find(is_bus_id, id, handle);
}
nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *id, void **handle) {
    ENTER();
    return find(is_bus_id, id, handle);
}

/* Identity. */
nvmlReturn_t nvmlDeviceGetName(void *device, char *to, uint32_t room) {
    ENTER_AS(device, 1);
    if (mig_of(device) >= 0) return put(to, room, world->migs[mig_of(device)].name, garbage);
    return gpu_of(device) >= 0 ? put(to, room, world->gpus[gpu_of(device)].name, garbage) : INVALID_ARGUMENT;
}
nvmlReturn_t nvmlDeviceGetUUID(void *device, char *to, uint32_t room) {
    ENTER_AS(device, 1);
    if (mig_of(device) >= 0) return put(to, room, world->migs[mig_of(device)].uuid, garbage);
    return gpu_of(device) >= 0 ? put(to, room, world->gpus[gpu_of(device)].uuid, garbage) : INVALID_ARGUMENT;
}
nvmlReturn_t nvmlDeviceGetSerial(void *device, char *to, uint32_t room) {
    ENTER_GPU(device);
    return gpu->serial[0] ? put(to, room, gpu->serial, garbage) : NOT_SUPPORTED;
}
nvmlReturn_t nvmlDeviceGetIndex(void *device, uint32_t *index) {
    ENTER_GPU(device);
    for (uint32_t i = 0; i < world->order_count; i++)
        if ((int)world->order[i] == gpu_of(device)) {
            *index = i;
            return OK;
        }
    return NOT_FOUND;
}
nvmlReturn_t nvmlDeviceGetMinorNumber(void *device, uint32_t *minor) { ENTER_GPU(device); *minor = gpu->minor; return OK; }
static void fill_pci(const Gpu *gpu, Pci *pci) {
    memset(pci, 0, sizeof *pci);
    snprintf(pci->id, sizeof pci->id, "%s", gpu->pci_bus_id);
    if (sscanf(gpu->pci_bus_id, "%x:%x:%x", &pci->domain, &pci->bus, &pci->device) == 3)
        snprintf(pci->legacy, sizeof pci->legacy, "%04X:%02X:%02X.0", pci->domain & 0xffff, pci->bus & 0xff,
                 pci->device & 0xff);
}
nvmlReturn_t nvmlDeviceGetPciInfo_v3(void *device, Pci *pci) {
    ENTER_GPU(device);
    fill_pci(gpu, pci);
    if (garbage) memcpy(pci->id, "\xff\xc3\x28", 3);
    return OK;
}
nvmlReturn_t nvmlDeviceGetPersistenceMode(void *device, uint32_t *mode) { ENTER_GPU(device); *mode = 1; return OK; }
nvmlReturn_t nvmlDeviceGetComputeMode(void *device, uint32_t *mode) { ENTER_GPU(device); *mode = 0; return OK; }

/* Memory and processes. */
static int lives(const Process *process) {
    if (process->phantom) return 1;
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%u/stat", process->pid);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return 0;
    ssize_t count = read(file, text, sizeof text - 1);
    close(file);
    if (count <= 0) return 0;
    text[count] = 0;
    char *field = strrchr(text, ')');
    if (!field || field[2] == 'Z' || field[2] == 'X') return 0;
    for (int i = 0; i < 20 && field; i++) field = strchr(field + 1, ' ');
    return field && strtoull(field + 1, NULL, 10) == process->start_time;
}
static uint64_t used_bytes(int number, const Mig *mig) {
    uint64_t used = mig ? 0 : world->gpus[number].memory_bytes_extra;
    for (uint32_t i = 0; i < world->process_count; i++) {
        const Process *process = &world->processes[i];
        if ((int)process->gpu != number || process->memory_bytes == UINT64_MAX) continue;
        if (mig && process->gpu_instance != mig->gpu_instance) continue;
        if (lives(process)) used += process->memory_bytes;
    }
    return used;
}
static nvmlReturn_t memory_of(const void *device, Memory2 *memory) {
    int mig = mig_of(device), number = mig >= 0 ? (int)world->migs[mig].gpu : gpu_of(device);
    if (number < 0) return INVALID_ARGUMENT;
    if (world->gpus[number].memory_unsupported) return NOT_SUPPORTED;
    memory->total = mig >= 0 ? world->migs[mig].memory_bytes_total : world->gpus[number].memory_bytes_total;
    memory->reserved = mig >= 0 ? 0 : world->gpus[number].memory_bytes_reserved;
    uint64_t room = memory->total - memory->reserved, used = used_bytes(number, mig >= 0 ? &world->migs[mig] : NULL);
    memory->used = used < room ? used : room;
    memory->free = room - memory->used;
    return OK;
}
nvmlReturn_t nvmlDeviceGetMemoryInfo(void *device, Memory *memory) {
    ENTER_AS(device, 1);
    Memory2 now;
    nvmlReturn_t result = memory_of(device, &now);
    if (result) return result;
    *memory = (Memory){now.total, now.free, now.used + now.reserved};
    return OK;
}
nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(void *device, Memory2 *memory) {
    ENTER_AS(device, 1);
    return memory->version == (sizeof(Memory2) | 2u << 24) ? memory_of(device, memory) : VERSION_MISMATCH;
}
nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(void *device, Memory *memory) {
    ENTER_GPU(device);
    if (gpu->memory_unsupported) return NOT_SUPPORTED;
    *memory = (Memory){gpu->memory_bytes_total, gpu->memory_bytes_total, 0};
    return OK;
}
static nvmlReturn_t list(const void *device, uint32_t kind, uint32_t *count, ProcessInfo *to) {
    int mig = mig_of(device), number = mig >= 0 ? (int)world->migs[mig].gpu : gpu_of(device);
    if (number < 0 || !count) return INVALID_ARGUMENT;
    uint32_t room = to ? *count : 0, found = 0;
    for (uint32_t i = 0; i < world->process_count; i++) {
        const Process *process = &world->processes[i];
        if ((int)process->gpu != number || process->kind != kind || !lives(process)) continue;
        if (mig >= 0 && process->gpu_instance != world->migs[mig].gpu_instance) continue;
        if (found < room)
            to[found] = (ProcessInfo){process->pid, process->memory_bytes, process->gpu_instance,
                                      process->compute_instance};
        found++;
    }
    *count = found;
    return found > room ? INSUFFICIENT_SIZE : OK;
}
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(void *device, uint32_t *count, ProcessInfo *to) {
    ENTER_AS(device, 1);
    return list(device, 0, count, to);
}
nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(void *device, uint32_t *count, ProcessInfo *to) {
    ENTER_AS(device, 1);
    return list(device, 1, count, to);
}
nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v3(void *device, uint32_t *count, ProcessInfo *to) {
    ENTER_AS(device, 1);
    return list(device, 2, count, to);
}

/* Telemetry. */
nvmlReturn_t nvmlDeviceGetUtilizationRates(void *device, Utilization *to) {
    ENTER_GPU(device);
    if (gpu->mig_mode) return NOT_SUPPORTED;
    *to = (Utilization){gpu->utilization_percent, gpu->utilization_memory_percent};
    return OK;
}
nvmlReturn_t nvmlDeviceGetTemperature(void *device, uint32_t sensor, uint32_t *to) {
    ENTER_GPU(device);
    if (sensor != 0) return INVALID_ARGUMENT;
    *to = gpu->temperature_celsius;
    return OK;
}
nvmlReturn_t nvmlDeviceGetTemperatureV(void *device, Temperature *to) {
    ENTER_GPU(device);
    if (to->version != (sizeof(Temperature) | 1u << 24)) return VERSION_MISMATCH;
    if (to->sensor != 0) return INVALID_ARGUMENT;
    to->celsius = (int32_t)gpu->temperature_celsius;
    return OK;
}
#define FIELD(symbol, type, field) \
    nvmlReturn_t symbol(void *device, type *to) { ENTER_GPU(device); *to = (type)gpu->field; return OK; }
FIELD(nvmlDeviceGetPowerUsage, uint32_t, power_milliwatts)
FIELD(nvmlDeviceGetEnforcedPowerLimit, uint32_t, power_milliwatts_max)
FIELD(nvmlDeviceGetPowerManagementLimit, uint32_t, power_milliwatts_max)
FIELD(nvmlDeviceGetPowerManagementDefaultLimit, uint32_t, power_milliwatts_max)
FIELD(nvmlDeviceGetTotalEnergyConsumption, uint64_t, energy_millijoules)
FIELD(nvmlDeviceGetCurrentClocksEventReasons, uint64_t, throttle_reasons)
FIELD(nvmlDeviceGetCurrentClocksThrottleReasons, uint64_t, throttle_reasons)
static nvmlReturn_t clock_of(const Gpu *gpu, uint32_t kind, uint32_t *to) {
    if (kind > 3) return INVALID_ARGUMENT; /* graphics, SM, memory, video */
    *to = kind == 2 ? gpu->clock_memory_mhz : gpu->clock_sm_mhz;
    return OK;
}
nvmlReturn_t nvmlDeviceGetClockInfo(void *device, uint32_t kind, uint32_t *to) {
    ENTER_GPU(device);
    return clock_of(gpu, kind, to);
}
nvmlReturn_t nvmlDeviceGetMaxClockInfo(void *device, uint32_t kind, uint32_t *to) {
    ENTER_GPU(device);
    return clock_of(gpu, kind, to);
}
nvmlReturn_t nvmlDeviceGetPerformanceState(void *device, uint32_t *to) { ENTER_GPU(device); *to = 0; return OK; }

/* Topology. */
nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(void *one, void *other, uint32_t *level) {
    ENTER_AS(one, 1);
    if (gpu_of(one) < 0 || gpu_of(other) < 0) return INVALID_ARGUMENT;
    if (world->gpus[gpu_of(other)].lost) return GPU_IS_LOST;
    *level = world->level[gpu_of(one)][gpu_of(other)];
    return OK;
}
nvmlReturn_t nvmlDeviceGetP2PStatus(void *one, void *other, uint32_t capability, uint32_t *status) {
    ENTER_AS(one, 1);
    if (gpu_of(one) < 0 || gpu_of(other) < 0) return INVALID_ARGUMENT;
    if (world->gpus[gpu_of(other)].lost) return GPU_IS_LOST;
    int linked = world->nvlinks[gpu_of(one)][gpu_of(other)] > 0;
    *status = capability == 2 && !linked ? 5 : 0; /* 5: not supported by the pair; 0: can */
    return OK;
}
static int peer_of_link(int number, uint32_t link) {
    for (uint32_t peer = 0; peer < GPUS_MAX; peer++) {
        if (link < world->nvlinks[number][peer]) return (int)peer;
        link -= world->nvlinks[number][peer];
    }
    return -1;
}
nvmlReturn_t nvmlDeviceGetNvLinkState(void *device, uint32_t link, uint32_t *active) {
    ENTER_GPU(device);
    if (link >= 18) return INVALID_ARGUMENT;
    if (peer_of_link(gpu_of(device), 0) < 0) return NOT_SUPPORTED;
    *active = peer_of_link(gpu_of(device), link) >= 0;
    return OK;
}
nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(void *device, uint32_t link, Pci *pci) {
    ENTER_GPU(device);
    int peer = link < 18 ? peer_of_link(gpu_of(device), link) : -1;
    if (peer < 0) return link < 18 ? NOT_SUPPORTED : INVALID_ARGUMENT;
    fill_pci(&world->gpus[peer], pci);
    return OK;
}
nvmlReturn_t nvmlDeviceGetCpuAffinity(void *device, uint32_t words, uint64_t *to) {
    ENTER_GPU(device);
    int any = 0;
    for (uint32_t i = 0; i < words; i++) any |= (to[i] = i < 16 ? gpu->cpu_affinity[i] : 0) != 0;
    return any ? OK : NOT_SUPPORTED;
}
/* The CPU's memory near the GPU; nvmlDeviceGetNumaNodeId is about GPUs that are nodes themselves, and not supported. */
nvmlReturn_t nvmlDeviceGetMemoryAffinity(void *device, uint32_t words, uint64_t *to, uint32_t scope) {
    ENTER_GPU(device);
    if (scope > 1 || words == 0) return INVALID_ARGUMENT;
    if (gpu->numa_node < 0) return NOT_SUPPORTED;
    memset(to, 0, words * sizeof *to);
    if ((uint32_t)gpu->numa_node < words * 64) to[gpu->numa_node / 64] = 1ull << gpu->numa_node % 64;
    return OK;
}

/* MIG. */
nvmlReturn_t nvmlDeviceGetMigMode(void *device, uint32_t *current, uint32_t *pending) {
    ENTER_GPU(device);
    if (gpu->mig_mode == UINT32_MAX) return NOT_SUPPORTED;
    *current = *pending = gpu->mig_mode;
    return OK;
}
nvmlReturn_t nvmlDeviceIsMigDeviceHandle(void *device, uint32_t *is) { ENTER_AS(device, 1); *is = mig_of(device) >= 0; return OK; }
nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(void *device, uint32_t *count) {
    ENTER_GPU(device);
    *count = gpu->mig_mode == 1 ? 7 : 0;
    return OK;
}
nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(void *device, uint32_t index, void **to) {
    ENTER_GPU(device);
    for (uint32_t i = 0; i < world->mig_count; i++) {
        const Mig *mig = &world->migs[i];
        if (mig->present && (int)mig->gpu == gpu_of(device) && mig->index == index) {
            *to = &mig_handles[i];
            return OK;
        }
    }
    return NOT_FOUND;
}
#define ENTER_MIG(device) \
    ENTER_AS(device, 1); \
    if (mig_of(device) < 0) return INVALID_ARGUMENT; \
    const Mig *mig = &world->migs[mig_of(device)]
nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(void *device, void **to) {
    ENTER_MIG(device);
    return hand_out(mig->gpu, to);
}
nvmlReturn_t nvmlDeviceGetGpuInstanceId(void *device, uint32_t *to) { ENTER_MIG(device); *to = mig->gpu_instance; return OK; }
nvmlReturn_t nvmlDeviceGetComputeInstanceId(void *device, uint32_t *to) { ENTER_MIG(device); *to = mig->compute_instance; return OK; }
nvmlReturn_t nvmlDeviceGetAttributes_v2(void *device, Attributes *to) {
    ENTER_MIG(device);
    memset(to, 0, sizeof *to);
    to->counts[6] = to->counts[7] = mig->slices;
    to->memory_mib = mig->memory_bytes_total >> 20;
    return OK;
}

/* Events: only Xid errors. A set starts at what is written when a GPU joins it. */
enum { EVENT_XID = 8, EVENT_POLL_MS = 20 };
nvmlReturn_t nvmlDeviceGetSupportedEventTypes(void *device, uint64_t *types) { ENTER_GPU(device); *types = EVENT_XID; return OK; }
nvmlReturn_t nvmlEventSetCreate(void **to) {
    ENTER();
    EventSet *set = calloc(1, sizeof *set);
    set->seen = world->xids_written;
    *to = set;
    return OK;
}
nvmlReturn_t nvmlDeviceRegisterEvents(void *device, uint64_t types, void *to) {
    ENTER_GPU(device);
    if (types & ~(uint64_t)EVENT_XID) return NOT_SUPPORTED;
    ((EventSet *)to)->gpus |= 1ull << gpu_of(device);
    return OK;
}
nvmlReturn_t nvmlEventSetWait_v2(void *from, EventData *data, uint32_t timeout_ms) {
    ENTER();
    EventSet *set = from;
    for (uint32_t waited = 0;; waited += EVENT_POLL_MS) {
        while (set->seen < __atomic_load_n(&world->xids_written, __ATOMIC_SEQ_CST)) {
            const Xid *xid = &world->xids[set->seen++ % XIDS_MAX];
            if (!(set->gpus >> xid->gpu & 1)) continue;
            *data = (EventData){&gpu_handles[xid->gpu], EVENT_XID, xid->code, UINT32_MAX, UINT32_MAX};
            return OK;
        }
        for (uint32_t i = 0; i < world->gpu_count; i++)
            if (set->gpus >> i & 1 && world->gpus[i].lost) return GPU_IS_LOST;
        if (waited >= timeout_ms) return TIMED_OUT;
        wait_ms(EVENT_POLL_MS);
    }
}
nvmlReturn_t nvmlEventSetFree(void *set) { ENTER(); free(set); return OK; }
