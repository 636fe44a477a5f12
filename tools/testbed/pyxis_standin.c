/* A stand-in for pyxis, the container plugin of Slurm, which runs images with enroot.
 *
 * It takes the options of pyxis that a job script uses and runs the task in an image that is a plain FOLDER. That is
 * enough to test the options, mounts and in-container paths of a script. It differs from pyxis and enroot: there is no
 * download, no .sqsh file and no user namespace, and what a task writes to the image stays in the folder.
 *
 * Applied:   --container-image=FOLDER  --container-mounts=SRC:DST[:ro],...  --container-workdir=PATH  --container-env=NAME,...
 * Accepted:  --[no-]container-entrypoint  --[no-]container-mount-home  --[no-]container-remap-root
 *            --container-writable  --container-readonly  --container-name=NAME
 * Of the image: etc/fstab (bind lines) and etc/environment, as with enroot.
 *
 * API: https://slurm.schedmd.com/spank.html; options: https://github.com/NVIDIA/pyxis#usage.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <slurm/spank.h>

SPANK_PLUGIN(pyxis_standin, 1)

enum { IMAGE, MOUNTS, WORKDIR, OWN, OPTIONS_WITH_TEXT };
static char *text_of[OPTIONS_WITH_TEXT];

/* Mounted from the node into every container. MPI and Slurm's commands need the last four. */
static const char *const FROM_NODE[] = {"/dev",       "/proc",   "/sys",       "/etc/hosts",
                                        "/etc/passwd", "/etc/group", "/etc/slurm", "/run",
                                        "/tmp",       "/etc/nsswitch.conf"};

static int failed(const char *doing, const char *path)
{
	slurm_error("pyxis stand-in: can't %s %s: %s", doing, path, strerror(errno));
	return -1;
}

static int keep_text(int option, const char *text, int remote)
{
	(void)remote;
	text_of[option] = strdup(text);
	return 0;
}

static int accept_only(int option, const char *text, int remote)
{
	(void)option, (void)text, (void)remote;
	return 0;
}

static struct spank_option OPTIONS[] = {
	{"container-image", "FOLDER", "run in this image (stand-in: a folder)", 1, IMAGE, keep_text},
	{"container-mounts", "SRC:DST[:ro],...", "bind mounts of the container", 1, MOUNTS, keep_text},
	{"container-workdir", "PATH", "working directory in the container", 1, WORKDIR, keep_text},
	{"container-env", "NAME,...", "variables of the job that replace those of the image", 1, OWN, keep_text},
	{"container-name", "NAME", "accepted (stand-in)", 1, 0, accept_only},
	{"container-entrypoint", NULL, "accepted (stand-in)", 0, 0, accept_only},
	{"no-container-entrypoint", NULL, "accepted (stand-in)", 0, 0, accept_only},
	{"container-mount-home", NULL, "accepted (stand-in)", 0, 0, accept_only},
	{"no-container-mount-home", NULL, "accepted (stand-in)", 0, 0, accept_only},
	{"container-remap-root", NULL, "accepted (stand-in)", 0, 0, accept_only},
	{"no-container-remap-root", NULL, "accepted (stand-in)", 0, 0, accept_only},
	{"container-writable", NULL, "accepted (stand-in)", 0, 0, accept_only},
	{"container-readonly", NULL, "accepted (stand-in)", 0, 0, accept_only},
};

/* Slurm calls this in srun, sbatch, salloc and in the process that starts the tasks on a node. */
int slurm_spank_init(spank_t spank, int argc, char *argv[])
{
	(void)argc, (void)argv;
	for (size_t i = 0; i < sizeof OPTIONS / sizeof *OPTIONS; i++)
		if (spank_option_register(spank, &OPTIONS[i]) != ESPANK_SUCCESS)
			return -1;
	return 0;
}

/* Create every folder on the way to `path`, and `path` itself as a folder or an empty file. */
static int make_mount_point(char *path, int is_folder)
{
	for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
		*slash = '\0';
		int made = mkdir(path, 0755);
		*slash = '/';
		if (made < 0 && errno != EEXIST)
			return failed("make", path);
	}
	if (is_folder)
		return mkdir(path, 0755) < 0 && errno != EEXIST ? failed("make", path) : 0;
	int file = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
	return file < 0 ? failed("make", path) : close(file);
}

/* Show `source` at `target` of the container, both absolute. */
static int bind(const char *source, const char *target, int read_only)
{
	struct stat found;
	char path[PATH_MAX];

	if (stat(source, &found) < 0)
		return failed("mount", source);
	if (snprintf(path, sizeof path, "%s%s", text_of[IMAGE], target) >= (int)sizeof path) {
		errno = ENAMETOOLONG;
		return failed("mount", target);
	}
	if (make_mount_point(path, S_ISDIR(found.st_mode)) < 0)
		return -1;
	if (mount(source, path, NULL, MS_BIND | MS_REC, NULL) < 0)
		return failed("mount", source);
	if (read_only && mount(NULL, path, NULL, MS_BIND | MS_REMOUNT | MS_RDONLY, NULL) < 0)
		return failed("make read-only", source);
	return 0;
}

/* Bind SRC:DST[:FLAGS],...; only SRC means the same path inside. */
static int bind_all(char *list)
{
	char *rest = list;
	for (char *item; (item = strsep(&rest, ","));) {
		char *source = strsep(&item, ":"), *target = strsep(&item, ":");
		int read_only = item && strcmp(item, "ro") == 0;
		if (bind(source, target ? target : source, read_only) < 0)
			return -1;
	}
	return 0;
}

/* Open a file of the image; NULL if it does not exist. */
static FILE *open_in_image(const char *name)
{
	char path[PATH_MAX];
	snprintf(path, sizeof path, "%s%s", text_of[IMAGE], name);
	return fopen(path, "re");
}

static int bind_fstab(void)
{
	FILE *fstab = open_in_image("/etc/fstab");
	char source[PATH_MAX], target[PATH_MAX];
	int result = 0;

	while (fstab && result == 0 && fscanf(fstab, "%4095s %4095s %*[^\n]", source, target) == 2)
		result = bind(source, target, 0);
	if (fstab)
		fclose(fstab);
	return result;
}

/* Whether --container-env names a variable. */
static int is_own(const char *name)
{
	size_t length = strlen(name);
	for (const char *at = text_of[OWN]; at; at = strchr(at, ','), at = at ? at + 1 : NULL)
		if (strncmp(at, name, length) == 0 && (at[length] == ',' || at[length] == '\0'))
			return 1;
	return 0;
}

/* Set the variables of NAME=VALUE lines; those of the image replace those of the job, without --container-env. */
static void set_environment(spank_t spank)
{
	FILE *environment = open_in_image("/etc/environment");
	char line[PATH_MAX], *value;

	while (environment && fgets(line, sizeof line, environment)) {
		line[strcspn(line, "\n")] = '\0';
		if ((value = strchr(line, '='))) {
			*value++ = '\0';
			spank_setenv(spank, line, value, !is_own(line));
		}
	}
	if (environment)
		fclose(environment);
}

/* Slurm calls this in every new task as root, before the task changes to the user. */
int slurm_spank_task_init_privileged(spank_t spank, int argc, char *argv[])
{
	(void)argc, (void)argv;
	struct stat found;

	if (!text_of[IMAGE])
		return 0;
	if (stat(text_of[IMAGE], &found) < 0)
		return failed("find image", text_of[IMAGE]);
	if (!S_ISDIR(found.st_mode)) {
		errno = ENOTDIR; /* a .sqsh file, or a name in a registry */
		return failed("use image", text_of[IMAGE]);
	}
	if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
		return failed("separate mounts for", text_of[IMAGE]);
	if (bind_fstab() < 0)
		return -1;
	for (size_t i = 0; i < sizeof FROM_NODE / sizeof *FROM_NODE; i++)
		if (bind(FROM_NODE[i], FROM_NODE[i], 0) < 0)
			return -1;
	if (text_of[MOUNTS] && bind_all(text_of[MOUNTS]) < 0)
		return -1;
	set_environment(spank);
	return chroot(text_of[IMAGE]) < 0 || chdir("/") < 0 ? failed("enter", text_of[IMAGE]) : 0;
}

/* Slurm calls this later, as the user, after it tried to change to the directory of submission. */
int slurm_spank_task_init(spank_t spank, int argc, char *argv[])
{
	(void)spank, (void)argc, (void)argv;
	const char *workdir = text_of[WORKDIR] ? text_of[WORKDIR] : "/";

	if (!text_of[IMAGE])
		return 0;
	return chdir(workdir) < 0 ? failed("change to", workdir) : 0;
}
