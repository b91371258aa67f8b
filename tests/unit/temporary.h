/**
 * tests/unit/temporary.h: an empty directory a test may fill, removed with all in it.
 */
#ifndef TESTS_UNIT_TEMPORARY_H
#define TESTS_UNIT_TEMPORARY_H

#include <dirent.h>
#include <ftw.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

struct temporary {
    char directory[64];
};

static inline bool temporary_make(struct temporary *temporary)
{
    strcpy(temporary->directory, "/tmp/zero-test-XXXXXX");
    return mkdtemp(temporary->directory) != NULL;
}

/** directory/name; valid until the next-but-three call in this thread. */
static inline const char *temporary_path(const struct temporary *temporary, const char *name)
{
    static _Thread_local char path[4][512];
    static _Thread_local unsigned next;
    char *result = path[next++ % 4];
    snprintf(result, sizeof path[0], "%s/%s", temporary->directory, name);
    return result;
}

/** Makes a directory in it. */
static inline bool temporary_folder(const struct temporary *temporary, const char *name)
{
    return mkdir(temporary_path(temporary, name), 0777) == 0;
}

/** Creates or replaces a file in it. */
static inline bool temporary_write(const struct temporary *temporary, const char *name,
                                   const char *text)
{
    FILE *file = fopen(temporary_path(temporary, name), "w");
    const bool written = file && fputs(text, file) >= 0;
    return file && fclose(file) == 0 && written;
}

/** Number of entries of the directory. */
static inline int temporary_entries(const struct temporary *temporary)
{
    DIR *directory = opendir(temporary->directory);
    int count = 0;
    for (struct dirent *entry; directory && (entry = readdir(directory));)
        count += strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
    if (directory)
        closedir(directory);
    return count;
}

static inline int temporary_remove_entry(const char *path, const struct stat *status, int kind,
                                         struct FTW *where)
{
    (void)status;
    (void)kind;
    (void)where;
    return remove(path);
}

/** Removes all that is in a directory: a test that is about another run begins there anew. */
static inline bool temporary_empty(const char *path)
{
    nftw(path, temporary_remove_entry, 8, FTW_DEPTH | FTW_PHYS);
    return mkdir(path, 0777) == 0;
}

static inline void temporary_remove(const struct temporary *temporary)
{
    nftw(temporary->directory, temporary_remove_entry, 8, FTW_DEPTH | FTW_PHYS);
}

#endif
