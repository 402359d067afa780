/* A libnvidia-ml.so.1 with NVML's own names and layouts, which says what a file tells it to: $FAKE_NVML, read at each
 * call. Its lines:
 *   init CODE                                what nvmlInit returns
 *   hang FUNCTION                            this function never returns
 *   crash FUNCTION                           this function ends the process
 *   gpu NUMBER UUID TOTAL USED BUSY          bytes and per cent
 *   open NUMBER CODE                         what nvmlDeviceGetHandleByIndex returns
 *   error NUMBER CODE                        what every question about this GPU returns
 *   mig NUMBER 0|1                           without it: not supported
 *   process NUMBER PID BYTES|-               "-": not available
 * Layouts and codes: nvml.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct { unsigned long long total, free, used; } nvmlMemory_t;
typedef struct { unsigned int gpu, memory; } nvmlUtilization_t;
typedef struct { unsigned int pid; unsigned long long usedGpuMemory; unsigned int gi, ci; } nvmlProcessInfo_t;

enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID = 2, NOT_SUPPORTED = 3, INSUFFICIENT_SIZE = 7 };

static int started;
static char text[65536];

static void load(const char *function) {
    const char *path = getenv("FAKE_NVML");
    FILE *file = path ? fopen(path, "r") : NULL;
    size_t size = file ? fread(text, 1, sizeof text - 1, file) : 0;
    char line[128];
    text[size] = 0;
    if (file) fclose(file);
    snprintf(line, sizeof line, "hang %s\n", function);
    while (strstr(text, line)) pause();
    snprintf(line, sizeof line, "crash %s\n", function);
    if (strstr(text, line)) abort();
}

/* The rest of the count-th line that begins with these words, null without one. */
static const char *find(const char *words, int count) {
    size_t length = strlen(words);
    for (const char *at = text; at && *at; at = strchr(at, '\n'), at = at ? at + 1 : at)
        if (!strncmp(at, words, length) && at[length] == ' ' && count-- == 0) return at + length + 1;
    return NULL;
}

static const char *about(const char *word, unsigned number) {
    char words[64];
    snprintf(words, sizeof words, "%s %u", word, number);
    return find(words, 0);
}

static unsigned number_of(void *device) { return (unsigned)((unsigned long)device - 1000); }

static int failed(void *device) {
    const char *code;
    if (!started) return UNINITIALIZED;
    code = about("error", number_of(device));
    return code ? atoi(code) : SUCCESS;
}

int nvmlInitWithFlags(unsigned flags) {
    const char *code;
    (void)flags;
    load("init");
    code = find("init", 0);
    started = !code;
    return code ? atoi(code) : SUCCESS;
}

int nvmlShutdown(void) { return SUCCESS; }

const char *nvmlErrorString(int code) {
    return code == 15 ? "GPU is lost" : code == 4 ? "Insufficient Permissions" : code == 9 ? "Driver Not Loaded" : "Error";
}

int nvmlDeviceGetCount_v2(unsigned *count) {
    load("count");
    for (*count = 0; find("gpu", (int)*count); ++*count) continue;
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned number, void **device) {
    const char *code;
    load("handle");
    code = about("open", number);
    if (code) return atoi(code);
    *device = (void *)(1000UL + number);
    return about("gpu", number) ? SUCCESS : INVALID;
}

int nvmlDeviceGetUUID(void *device, char *uuid, unsigned length) {
    char found[96] = "";
    load("uuid");
    sscanf(about("gpu", number_of(device)), "%95s", found);
    snprintf(uuid, length, "%s", found);
    return failed(device);
}

int nvmlDeviceGetName(void *device, char *name, unsigned length) {
    snprintf(name, length, "NVIDIA Imaginary");
    return failed(device);
}

int nvmlDeviceGetMigMode(void *device, unsigned *current, unsigned *pending) {
    const char *mode;
    load("mig");
    mode = about("mig", number_of(device));
    *current = *pending = mode ? (unsigned)atoi(mode) : 0;
    return mode ? SUCCESS : NOT_SUPPORTED;
}

int nvmlDeviceGetMemoryInfo(void *device, nvmlMemory_t *memory) {
    load("memory");
    if (failed(device)) return failed(device);
    sscanf(about("gpu", number_of(device)), "%*s %llu %llu", &memory->total, &memory->used);
    memory->free = memory->total - memory->used;
    return SUCCESS;
}

int nvmlDeviceGetUtilizationRates(void *device, nvmlUtilization_t *use) {
    load("use");
    if (failed(device)) return failed(device);
    use->memory = 0;
    return sscanf(about("gpu", number_of(device)), "%*s %*s %*s %u", &use->gpu) == 1 ? SUCCESS : NOT_SUPPORTED;
}

int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, nvmlProcessInfo_t *processes) {
    char words[64];
    const char *line;
    unsigned room = *count;
    load("processes");
    if (failed(device)) return failed(device);
    snprintf(words, sizeof words, "process %u", number_of(device));
    for (*count = 0; (line = find(words, (int)*count)); ++*count) {
        if (*count >= room || !processes) continue;
        memset(&processes[*count], 0, sizeof *processes);
        if (sscanf(line, "%u %llu", &processes[*count].pid, &processes[*count].usedGpuMemory) < 2)
            processes[*count].usedGpuMemory = ~0ULL;
    }
    return *count > room ? INSUFFICIENT_SIZE : SUCCESS;
}

int nvmlDeviceGetGraphicsRunningProcesses_v3(void *device, unsigned *count, nvmlProcessInfo_t *processes) {
    (void)processes;
    *count = 0;
    return failed(device);
}
