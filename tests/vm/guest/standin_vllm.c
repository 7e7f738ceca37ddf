/* A stand-in for a vLLM server: the process titles and thread names of the real one, and memory traffic.
 *
 *   standin_vllm [TENSOR_PARALLEL] [MIB] [POOL]
 *
 * `vllm serve` starts VLLM::APIServer_0 and VLLM::EngineCore; EngineCore starts VLLM::Worker_TP0.. (none for one rank,
 * as the real one). Each EngineCore and Worker has what the real one has: a main thread that wakes often, a pool of
 * threads that were given no name (OpenMP), CUDA's event handler, PyTorch's watchdog. The pool reads and writes MIB of
 * memory that the process touched itself. Titles are argv[0], as setproctitle(3) leaves them; SIGTERM ends all.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

static unsigned char *memory;
static size_t memory_bytes;
static int pool;

static void pause_ms(long ms)
{
    struct timespec t = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&t, NULL);
}

/* A pool thread: its slice of the memory, read and written, then a rest: emulated CPUs are slow. */
static void *traffic(void *arg)
{
    size_t slice = memory_bytes / (size_t)pool, begin = slice * (size_t)(uintptr_t)arg;
    for (;;) {
        for (size_t i = begin; i + 64 <= begin + slice; i += 64)
            memory[i]++;
        pause_ms(20);
    }
    return NULL;
}

static void *waits(void *name)
{
    pthread_setname_np(pthread_self(), name);
    for (;;)
        pause_ms(1000);
    return NULL;
}

static void thread(void *(*run)(void *), void *arg)
{
    pthread_t made;
    if (pthread_create(&made, NULL, run, arg)) {
        perror("pthread_create");
        exit(1);
    }
}

static pid_t start(const char *title, const char *part, char **argv)
{
    pid_t child = fork();
    if (child)
        return child;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    setenv("STANDIN_PART", part, 1);
    execl("/proc/self/exe", title, argv[1], argv[2], argv[3], (char *)NULL);
    perror("exec");
    _exit(1);
}

int main(int argc, char **argv)
{
    const char *part = getenv("STANDIN_PART");
    /* Copies: the arguments themselves are wiped below. */
    char *full[] = {argv[0], strdup(argc > 1 ? argv[1] : "1"), strdup(argc > 2 ? argv[2] : "32"),
                    strdup(argc > 3 ? argv[3] : "2"), NULL};
    int ranks = atoi(full[1]);
    memory_bytes = (size_t)atoi(full[2]) << 20;
    pool = atoi(full[3]);
    if (!part) {
        prctl(PR_SET_NAME, "vllm");
        start("VLLM::APIServer_0", "api", full);
        start("VLLM::EngineCore", "engine", full);
        for (;;)
            pause();
    }
    /* setproctitle leaves nothing of the arguments. */
    for (int i = 1; i < argc; i++)
        memset(argv[i], 0, strlen(argv[i]));
    prctl(PR_SET_NAME, argv[0]);
    if (!strcmp(part, "engine") && ranks > 1)
        for (int i = 0; i < ranks; i++) {
            char title[32];
            snprintf(title, sizeof title, "VLLM::Worker_TP%d", i);
            start(title, "worker", full);
        }
    if (strcmp(part, "api")) {
        memory = mmap(NULL, memory_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED) {
            perror("mmap");
            return 1;
        }
        memset(memory, 1, memory_bytes);
        for (int i = 0; i < pool; i++)
            thread(traffic, (void *)(uintptr_t)i);
        thread(waits, "cuda-EvtHandlr");
        thread(waits, "pt_nccl_watchdg");
    }
    for (;;)
        pause_ms(50);
}
