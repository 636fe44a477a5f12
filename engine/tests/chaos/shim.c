/* Comes between a process and its file operations (LD_PRELOAD): kills the process at one of them, lets some fail or
 * wait, and shifts the clock. Only operations that change something below one of two folders count.
 *
 *   cc -shared -fPIC -O1 -o shim.so shim.c -ldl
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

static char folders[2][PATH_MAX];
static long count, kill_at, fail_from, fail_to, delay_us, clock_shift;
static int fail_errno;

/* Begin to count from 0. kill_at: the operation to die at, a write after half of its bytes. fail_from..fail_to: the
 * operations that fail. The rest is 0 for none. */
void chaos_arm(const char *first, const char *second, long at, long from, long to, int error, long delay) {
    snprintf(folders[0], PATH_MAX, "%s", first);
    snprintf(folders[1], PATH_MAX, "%s", second);
    count = 0, kill_at = at, fail_from = from, fail_to = to, fail_errno = error, delay_us = delay;
}
long chaos_count(void) { return count; }
void chaos_clock(long seconds) { clock_shift = seconds; }

static int below(const char *path) {
    for (int i = 0; i < 2; i++) {
        size_t n = strlen(folders[i]);
        if (n && !strncmp(path, folders[i], n) && (path[n] == '/' || !path[n])) return 1;
    }
    return 0;
}

static int relevant(int dir, const char *name) {
    char link[64], path[2 * PATH_MAX];
    if (!folders[0][0]) return 0;
    if (name && name[0] == '/') return below(name);
    if (dir == AT_FDCWD) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", dir);
    ssize_t n = readlink(link, path, PATH_MAX - 1);
    if (n <= 0) return 0;
    path[n] = 0;
    return below(path);
}

/* 0: go on; 1: fail, errno is set; 2: die, once half is written. */
static int verdict(int writes) {
    long now = __atomic_add_fetch(&count, 1, __ATOMIC_SEQ_CST);
    if (delay_us) usleep(delay_us);
    if (now == kill_at) {
        if (writes) return 2;
        kill(getpid(), SIGKILL);
        pause();
    }
    if (fail_from && now >= fail_from && now <= fail_to) return errno = fail_errno, 1;
    return 0;
}

#define REAL(name) __typeof__(name) *real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)
#define WRAP(type, name, arguments, dir, path, call)  \
    type name arguments {                             \
        REAL(name);                                   \
        if (relevant(dir, path) && verdict(0)) return -1; \
        return real call;                             \
    }
#define WRITE(name, arguments, fd, first_half, call)   \
    ssize_t name arguments {                           \
        REAL(name);                                    \
        int v = relevant(fd, NULL) ? verdict(1) : 0;   \
        if (v == 1) return -1;                         \
        if (v == 2) { (void)!real first_half; kill(getpid(), SIGKILL); pause(); } \
        return real call;                              \
    }
#define OPEN(name)                                                                  \
    int name(const char *path, int flags, ...) {                                    \
        REAL(name);                                                                 \
        va_list rest;                                                               \
        va_start(rest, flags);                                                      \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0;     \
        va_end(rest);                                                               \
        if (flags & (O_CREAT | O_WRONLY | O_RDWR | O_TRUNC) && relevant(AT_FDCWD, path) && verdict(0)) return -1; \
        return real(path, flags, mode);                                             \
    }

#define OPENAT(name)                                                                \
    int name(int dir, const char *path, int flags, ...) {                           \
        REAL(name);                                                                 \
        va_list rest;                                                               \
        va_start(rest, flags);                                                      \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0;     \
        va_end(rest);                                                               \
        if (flags & (O_CREAT | O_WRONLY | O_RDWR | O_TRUNC) && relevant(dir, path) && verdict(0)) return -1; \
        return real(dir, path, flags, mode);                                        \
    }

OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)
WRITE(write, (int fd, const void *data, size_t n), fd, (fd, data, n / 2), (fd, data, n))
WRITE(pwrite, (int fd, const void *data, size_t n, off_t at), fd, (fd, data, n / 2, at), (fd, data, n, at))
WRITE(pwrite64, (int fd, const void *data, size_t n, off64_t at), fd, (fd, data, n / 2, at), (fd, data, n, at))
WRITE(writev, (int fd, const struct iovec *data, int n), fd, (fd, data, n / 2), (fd, data, n))
WRAP(int, fsync, (int fd), fd, NULL, (fd))
WRAP(int, fdatasync, (int fd), fd, NULL, (fd))
WRAP(int, ftruncate, (int fd, off_t n), fd, NULL, (fd, n))
WRAP(int, rename, (const char *from, const char *to), AT_FDCWD, to, (from, to))
WRAP(int, renameat, (int a, const char *from, int b, const char *to), b, to, (a, from, b, to))
WRAP(int, link, (const char *from, const char *to), AT_FDCWD, to, (from, to))
WRAP(int, unlink, (const char *path), AT_FDCWD, path, (path))
WRAP(int, unlinkat, (int dir, const char *path, int flags), dir, path, (dir, path, flags))
WRAP(int, rmdir, (const char *path), AT_FDCWD, path, (path))
WRAP(int, mkdir, (const char *path, mode_t mode), AT_FDCWD, path, (path, mode))
WRAP(int, mkdirat, (int dir, const char *path, mode_t mode), dir, path, (dir, path, mode))

int clock_gettime(clockid_t which, struct timespec *now) {
    REAL(clock_gettime);
    int failed = real(which, now);
    if (!failed && which == CLOCK_REALTIME) now->tv_sec += clock_shift;
    return failed;
}
