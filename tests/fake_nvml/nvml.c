/* A libnvidia-ml.so.1 for tests: two GPUs with twelve NVLinks between them.
 *
 * FAKE_NVML: "ok"; "bare" (all that is optional is NotSupported); "lost" (GPU 1 fell off the bus);
 * "noinit" (the driver is not loaded); "hang" (memory of GPU 1 is asked until FAKE_NVML_GATE exists).
 * Signatures: NVML API reference. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, DRIVER_NOT_LOADED = 9, GPU_IS_LOST = 15 };
enum { GPUS = 2, LINKS = 12, NODE_OF_FIRST = 0 };

typedef int status_t;
typedef const struct gpu { unsigned index; const char *bus_id; } *gpu_t;
static const struct gpu gpus[GPUS] = {{0, "00000000:3B:00.0"}, {1, "00000000:AF:00.0"}};
static const struct gpu part = {1, "00000000:AF:00.0"}; /* the one MIG device, of GPU 1, in slot 2 */

typedef struct {
  char legacy[16];
  unsigned domain, bus, device, pci_device, pci_subsystem;
  char bus_id[32];
} pci_info_t;
typedef struct { unsigned long long total, free, used; } memory_t;

static int mode(const char *name) {
  const char *now = getenv("FAKE_NVML");
  return now && !strcmp(now, name);
}
static status_t optional(void) { return mode("bare") ? NOT_SUPPORTED : SUCCESS; }
static status_t put(char *out, unsigned size, const char *text) {
  return snprintf(out, size, "%s", text) < (int)size ? SUCCESS : INVALID_ARGUMENT;
}
static status_t pci_info(gpu_t gpu, pci_info_t *out) {
  memset(out, 0, sizeof *out);
  return put(out->bus_id, sizeof out->bus_id, gpu->bus_id);
}

status_t nvmlInitWithFlags(unsigned flags) { (void)flags; return mode("noinit") ? DRIVER_NOT_LOADED : SUCCESS; }
const char *nvmlErrorString(status_t s) {
  switch (s) {
  case NOT_SUPPORTED: return "Not Supported";
  case DRIVER_NOT_LOADED: return "Driver Not Loaded";
  case GPU_IS_LOST: return "GPU is lost";
  default: return "Unknown Error";
  }
}
status_t nvmlSystemGetDriverVersion(char *out, unsigned size) { return put(out, size, "570.00.01"); }
status_t nvmlDeviceGetCount_v2(unsigned *out) { *out = GPUS; return SUCCESS; }
status_t nvmlDeviceGetHandleByIndex_v2(unsigned i, gpu_t *out) {
  if (i >= GPUS) return INVALID_ARGUMENT;
  *out = &gpus[i];
  return SUCCESS;
}
status_t nvmlDeviceGetPciInfo_v3(gpu_t gpu, pci_info_t *out) { return pci_info(gpu, out); }
status_t nvmlDeviceGetMemoryInfo(gpu_t gpu, memory_t *out) {
  const char *gate = getenv("FAKE_NVML_GATE");
  if (gpu->index == 1 && mode("lost")) return GPU_IS_LOST;
  if (gpu->index == 1 && mode("hang"))
    while (!gate || access(gate, F_OK)) usleep(10000);
  *out = (memory_t){.total = 80ULL << 30, .free = 79ULL << 30, .used = 1ULL << 30};
  return SUCCESS;
}
status_t nvmlDeviceGetName(gpu_t gpu, char *out, unsigned size) { (void)gpu; return put(out, size, "Test GPU 80GB"); }
status_t nvmlDeviceGetUUID(gpu_t gpu, char *out, unsigned size) {
  if (gpu == &part) return put(out, size, "MIG-00000000-0000-4000-8000-000000000002");
  return put(out, size, gpu->index ? "GPU-00000000-0000-4000-8000-000000000001" : "GPU-00000000-0000-4000-8000-000000000000");
}
status_t nvmlDeviceGetNumaNodeId(gpu_t gpu, int *out) { *out = NODE_OF_FIRST + (int)gpu->index; return optional(); }
status_t nvmlDeviceGetCpuAffinityWithinScope(gpu_t gpu, unsigned words, unsigned long long *out, unsigned scope) {
  (void)scope;
  memset(out, 0, words * sizeof *out);
  out[gpu->index] = 0xffULL;
  return optional();
}
status_t nvmlDeviceGetMigMode(gpu_t gpu, unsigned *now, unsigned *pending) { *now = *pending = gpu->index; return optional(); }
typedef struct {
  unsigned multiprocessors, copy, decoders, encoders, jpeg, ofa, gpu_slices, compute_slices;
  unsigned long long memory_mb;
} attributes_t;
status_t nvmlDeviceGetMaxMigDeviceCount(gpu_t gpu, unsigned *out) { (void)gpu; *out = 7; return optional(); }
status_t nvmlDeviceGetMigDeviceHandleByIndex(gpu_t gpu, unsigned slot, gpu_t *out) {
  *out = &part;
  return gpu->index == 1 && slot == 2 ? SUCCESS : NOT_FOUND;
}
status_t nvmlDeviceGetGpuInstanceId(gpu_t gpu, unsigned *out) { *out = 9; return gpu == &part ? SUCCESS : INVALID_ARGUMENT; }
status_t nvmlDeviceGetComputeInstanceId(gpu_t gpu, unsigned *out) { *out = 0; return gpu == &part ? SUCCESS : INVALID_ARGUMENT; }
status_t nvmlDeviceGetAttributes_v2(gpu_t gpu, attributes_t *out) {
  *out = (attributes_t){.multiprocessors = 16, .gpu_slices = 1, .compute_slices = 1, .memory_mb = 9856};
  return gpu == &part ? SUCCESS : NOT_SUPPORTED;
}
status_t nvmlDeviceGetNvLinkState(gpu_t gpu, unsigned link, unsigned *out) {
  (void)gpu;
  if (link >= LINKS) return INVALID_ARGUMENT;
  *out = 1;
  return optional();
}
status_t nvmlDeviceGetNvLinkRemotePciInfo_v2(gpu_t gpu, unsigned link, pci_info_t *out) {
  (void)link;
  return pci_info(&gpus[!gpu->index], out);
}
status_t nvmlDeviceGetNvLinkRemoteDeviceType(gpu_t gpu, unsigned link, int *out) { (void)gpu; (void)link; *out = 0; return SUCCESS; }
