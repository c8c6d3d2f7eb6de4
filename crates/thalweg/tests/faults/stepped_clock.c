// Steps the wall clock of one process, as if somebody had set the clock of its machine.
//
// The file that STEPPED_CLOCK names has one 64-bit number of seconds, which is added to every wall-clock time that the process
// asks the C library for. Other programs write the number while the process runs. Monotonic clocks are not changed.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

typedef int (*gettime)(clockid_t, struct timespec *);

static const volatile int64_t *step;
static gettime next_gettime;

__attribute__((constructor)) static void map_step(void) {
    next_gettime = (gettime)dlsym(RTLD_NEXT, "clock_gettime");
    const char *path = getenv("STEPPED_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) {
        return;
    }
    void *at = mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
    close(file);
    step = at == MAP_FAILED ? NULL : at;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    // Other constructors may ask for the time before this library's.
    int result = next_gettime ? next_gettime(clock, now) : (int)syscall(SYS_clock_gettime, clock, now);
    if (result == 0 && step && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        now->tv_sec += *step;
    }
    return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    (void)zone;
    struct timespec time;
    int result = clock_gettime(CLOCK_REALTIME, &time);
    now->tv_sec = time.tv_sec;
    now->tv_usec = time.tv_nsec / 1000;
    return result;
}

time_t time(time_t *now) {
    struct timespec time;
    clock_gettime(CLOCK_REALTIME, &time);
    if (now) {
        *now = time.tv_sec;
    }
    return time.tv_sec;
}
