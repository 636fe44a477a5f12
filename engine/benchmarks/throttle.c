/* A shared disk for benchmarks (LD_PRELOAD): all writes of a process below one folder together take no more bytes per
 * second than a real one would.
 *
 *   cc -shared -fPIC -O1 -o throttle.so throttle.c -ldl
 *   THROTTLE_FOLDER=/dev/shm/shared THROTTLE_RATE=300e6 LD_PRELOAD=./throttle.so program
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static double free_at; /* when the disk has taken all bytes so far, in seconds */

static int below(int fd) {
    const char *folder = getenv("THROTTLE_FOLDER");
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    if (!folder || n <= 0) return 0;
    path[n] = 0;
    return !strncmp(path, folder, strlen(folder));
}

/* Wait until the disk has taken `bytes` more. */
static ssize_t take(int fd, ssize_t bytes) {
    struct timespec now;
    if (bytes <= 0 || !below(fd)) return bytes;
    clock_gettime(CLOCK_MONOTONIC, &now);
    double time = now.tv_sec + now.tv_nsec * 1e-9;
    pthread_mutex_lock(&mutex);
    free_at = (free_at > time ? free_at : time) + bytes / atof(getenv("THROTTLE_RATE"));
    double wait = free_at - time;
    pthread_mutex_unlock(&mutex);
    struct timespec pause = {(time_t)wait, (long)((wait - (time_t)wait) * 1e9)};
    nanosleep(&pause, NULL);
    return bytes;
}

#define THROTTLE(name, arguments, call)                                          \
    ssize_t name arguments {                                                     \
        __typeof__(name) *real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name);    \
        return take(fd, real call);                                              \
    }

THROTTLE(write, (int fd, const void *data, size_t n), (fd, data, n))
THROTTLE(pwrite, (int fd, const void *data, size_t n, off_t at), (fd, data, n, at))
THROTTLE(pwrite64, (int fd, const void *data, size_t n, off64_t at), (fd, data, n, at))
THROTTLE(writev, (int fd, const struct iovec *data, int n), (fd, data, n))
