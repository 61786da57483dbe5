/* Preloaded: the clock of a process steps when the file $CLOCK_STEP is written, as if an
 * administrator had set it: clock_gettime, gettimeofday and time jump, and so do the times of
 * files that are changed from then on; monotonic clocks do not.
 * The file: seconds to add, and since when by the true clock, as two C doubles. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile double *step;

__attribute__((constructor)) static void map_step(void) {
    const char *name = getenv("CLOCK_STEP");
    int file = name ? open(name, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *at = mmap(NULL, 2 * sizeof(double), PROT_READ, MAP_SHARED, file, 0);
    if (at != MAP_FAILED) step = at;
    close(file);
}

static void move(struct timespec *time) {
    if (step && time->tv_sec + time->tv_nsec / 1e9 >= step[1]) time->tv_sec += (time_t)step[0];
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

int clock_gettime(clockid_t clock, struct timespec *time) {
    int code = REAL(clock_gettime)(clock, time);
    if (code == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) move(time);
    return code;
}

int gettimeofday(struct timeval *restrict time, void *restrict zone) {
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    time->tv_sec = now.tv_sec;
    time->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}

static int moved(int code, struct stat *about) {
    if (code == 0) {
        move(&about->st_mtim);
        move(&about->st_ctim);
        move(&about->st_atim);
    }
    return code;
}

int stat(const char *restrict path, struct stat *restrict about) {
    return moved(REAL(stat)(path, about), about);
}
int lstat(const char *restrict path, struct stat *restrict about) {
    return moved(REAL(lstat)(path, about), about);
}
int fstat(int file, struct stat *about) { return moved(REAL(fstat)(file, about), about); }
int fstatat(int folder, const char *restrict path, struct stat *restrict about, int flags) {
    return moved(REAL(fstatat)(folder, path, about, flags), about);
}
int stat64(const char *restrict path, struct stat64 *restrict about) {
    return moved(REAL(stat64)(path, about), (struct stat *)about);
}
int lstat64(const char *restrict path, struct stat64 *restrict about) {
    return moved(REAL(lstat64)(path, about), (struct stat *)about);
}
int fstat64(int file, struct stat64 *about) {
    return moved(REAL(fstat64)(file, about), (struct stat *)about);
}
int fstatat64(int folder, const char *restrict path, struct stat64 *restrict about, int flags) {
    return moved(REAL(fstatat64)(folder, path, about, flags), (struct stat *)about);
}
