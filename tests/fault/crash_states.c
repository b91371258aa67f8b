#include "tests/fault/crash_states.h"

#include "base/hash.h"

#include <stdlib.h>
#include <string.h>

enum { SECTOR = 512, MASKS = 6, KNOWN = 24 };

static void *need(void *memory)
{
    if (!memory)
        abort();
    return memory;
}

/* ------------------------------------------------------------------ sets */

static size_t slot_of(const struct crash_set *set, uint64_t number)
{
    size_t slot = number % set->room;
    while (set->slots[slot] && set->slots[slot] != number)
        slot = (slot + 1) % set->room;
    return slot;
}

bool crash_set_add(struct crash_set *set, uint64_t number)
{
    number += number == 0;
    if (2 * set->count >= set->room) {
        struct crash_set larger = {.room = set->room ? 2 * set->room : 1024};
        larger.slots = need(calloc(larger.room, sizeof *larger.slots));
        for (size_t i = 0; i < set->room; i++)
            if (set->slots[i])
                larger.slots[slot_of(&larger, set->slots[i])] = set->slots[i];
        larger.count = set->count;
        free(set->slots);
        *set = larger;
    }
    const size_t slot = slot_of(set, number);
    if (set->slots[slot])
        return false;
    set->slots[slot] = number;
    set->count++;
    return true;
}

void crash_set_free(struct crash_set *set)
{
    free(set->slots);
    *set = (struct crash_set){0};
}

/* ------------------------------------------------------------------ images */

// Which of the operations since the last flush are there.
enum pick {
    PICK_NONE,
    PICK_ALL,
    PICK_PREFIX,  // those before `at`, and sectors of that one before `piece`
    PICK_WITHOUT, // all but `at`
    PICK_ONLY,    // `at`
    PICK_OPS,     // random ones
    PICK_PIECES,  // random sectors of random ones
    PICKS,
};

struct picker {
    enum pick pick;
    size_t at, piece;
    uint64_t seed;
};

// A file or directory: what is durable of it, what has been done since, and one state of it.
struct object {
    struct crash_inode durable;
    size_t *pending; // numbers of operations
    size_t count, room;
    struct picker picker;
    struct crash_inode now;
    uint64_t built; // the image for which `now` was built, and for which `hash` was
    uint64_t hash, hashed;
};

struct crash_image {
    const struct crash_disk *disk;
    struct object *objects;
    uint64_t number;
    unsigned char filler; // what a sector holds that was not written although the file is as long
};

static uint64_t mix(uint64_t a, uint64_t b)
{
    const uint64_t both[] = {a, b};
    return base_hash64(both, sizeof both, 0);
}

static bool takes(const struct picker *picker, size_t at, size_t piece)
{
    switch (picker->pick) {
    case PICK_ALL:
        return true;
    case PICK_PREFIX:
        return at < picker->at || (at == picker->at && piece < picker->piece);
    case PICK_WITHOUT:
        return at != picker->at;
    case PICK_ONLY:
        return at == picker->at;
    case PICK_OPS:
        return mix(picker->seed, at) & 1;
    case PICK_PIECES:
        return mix(mix(picker->seed, at), piece) & 1;
    default:
        return false;
    }
}

static void reserve(struct crash_inode *file, size_t size)
{
    if (size <= file->room)
        return;
    file->bytes = need(realloc(file->bytes, size));
    file->room = size;
}

static void set_size(struct crash_inode *file, size_t size, unsigned char filler)
{
    reserve(file, size);
    if (size > file->size)
        memset(file->bytes + file->size, filler, size - file->size);
    file->size = size;
}

// Does the sectors of a write that are picked. Its last piece is the length; without it what lies
// behind the file's end is not seen.
static void write_pieces(struct crash_inode *file, const struct crash_op *op,
                         const struct picker *picker, size_t at, unsigned char filler)
{
    const size_t sectors = op->size / SECTOR;
    if (op->offset + op->size > file->size && takes(picker, at, sectors))
        set_size(file, op->offset + op->size, filler);
    for (size_t sector = 0; sector < sectors; sector++) {
        const size_t offset = op->offset + sector * SECTOR;
        if (offset + SECTOR <= file->size && takes(picker, at, sector))
            memcpy(file->bytes + offset, op->data + sector * SECTOR, SECTOR);
    }
}

static void copy_into(struct crash_inode *to, const struct crash_inode *from)
{
    to->directory = from->directory;
    reserve(to, from->size);
    if (from->size)
        memcpy(to->bytes, from->bytes, from->size);
    to->size = from->size;
    to->entries = need(realloc(to->entries, (from->count + 1) * sizeof *to->entries));
    if (from->count)
        memcpy(to->entries, from->entries, from->count * sizeof *to->entries);
    to->count = from->count;
}

static void build(struct crash_image *image, struct object *object)
{
    copy_into(&object->now, &object->durable);
    for (size_t at = 0; at < object->count; at++) {
        const struct crash_op *op = &image->disk->ops[object->pending[at]];
        if (op->kind == CRASH_WRITE)
            write_pieces(&object->now, op, &object->picker, at, image->filler);
        else if (op->kind == CRASH_TRUNCATE && takes(&object->picker, at, 0))
            set_size(&object->now, op->size, 0);
        else if (op->kind != CRASH_TRUNCATE && takes(&object->picker, at, 0))
            crash_inode_apply(&object->now, op);
    }
    object->built = image->number;
}

const struct crash_inode *crash_image_inode(struct crash_image *image, uint32_t inode)
{
    struct object *object = &image->objects[inode];
    if (object->count == 0 || object->picker.pick == PICK_NONE)
        return &object->durable;
    if (object->built != image->number)
        build(image, object);
    return &object->now;
}

uint64_t crash_image_hash(struct crash_image *image, uint32_t inode)
{
    struct object *object = &image->objects[inode];
    // A file's hash lasts as long as nothing is done to it.
    const bool lasts = object->count == 0 && !object->durable.directory;
    if (object->hashed == (lasts ? UINT64_MAX : image->number))
        return object->hash;
    const struct crash_inode *now = crash_image_inode(image, inode);
    uint64_t hash = now->directory ? 1 : base_hash64(now->bytes, now->size, 2);
    for (size_t i = 0; i < now->count; i++) {
        const struct crash_entry *entry = &now->entries[i];
        hash += mix(entry->hash, crash_image_hash(image, entry->inode));
    }
    object->hash = hash;
    object->hashed = lasts ? UINT64_MAX : image->number;
    return hash;
}

struct crash_disk *crash_image_mount(struct crash_image *image)
{
    const uint32_t count = image->disk->inode_count;
    struct crash_inode *inodes = need(calloc(count, sizeof *inodes));
    for (uint32_t i = 0; i < count; i++)
        inodes[i] = *crash_image_inode(image, i);
    struct crash_disk *disk = crash_disk_copy(inodes, count);
    free(inodes);
    return disk;
}

/* ------------------------------------------------------------------ states at one place */

struct tour {
    struct crash_image image;
    const struct crash_watch *watch;
    struct crash_set *states;
    struct crash_set since; // the last mark
    uint64_t random;
    uint32_t *open; // what has something pending
    uint32_t open_count;
    uint32_t changed; // which of these has changed; UINT32_MAX: all are looked at
    bool failed;
};

static uint64_t draw(struct tour *tour, uint64_t below)
{
    tour->random = mix(tour->random, 7);
    return tour->random % below;
}

// Shows the state of the pickers as they are; false if it was shown already.
static bool show(struct tour *tour)
{
    if (tour->failed)
        return false;
    tour->image.number++;
    tour->image.filler = draw(tour, 2) ? 0xdb : 0;
    const uint64_t hash = crash_image_hash(&tour->image, CRASH_ROOT);
    crash_set_add(tour->states, hash);
    if (!crash_set_add(&tour->since, hash))
        return false;
    tour->failed = !tour->watch->check(tour->watch->user, &tour->image);
    return true;
}

static struct object *opened(struct tour *tour, uint32_t i)
{
    return &tour->image.objects[tour->open[i]];
}

// Whole files and directories: each as it was flushed, or as it is. One that has just changed is as
// it is: the others were shown before.
static void show_masks(struct tour *tour)
{
    const uint32_t n = tour->open_count;
    const uint64_t masks = UINT64_C(1) << (n < MASKS ? n : MASKS);
    for (uint64_t mask = 0; mask < masks; mask++) {
        if (n <= MASKS && tour->changed < n && !(mask >> tour->changed & 1))
            continue;
        for (uint32_t i = 0; i < n; i++)
            opened(tour, i)->picker.pick =
                (n <= MASKS ? mask >> i & 1 : draw(tour, 2)) ? PICK_ALL : PICK_NONE;
        show(tour);
    }
}

static void show_cuts_of(struct tour *tour, uint32_t chosen)
{
    struct object *object = opened(tour, chosen);
    for (size_t at = 0; at < object->count; at++)
        for (enum pick pick = PICK_PREFIX; pick <= PICK_ONLY; pick++) {
            object->picker = (struct picker){.pick = pick, .at = at, .piece = draw(tour, 32)};
            show(tour);
        }
}

// One file or directory in parts, the others all as they were flushed, or as they are.
static void show_cuts(struct tour *tour)
{
    for (uint32_t chosen = 0; chosen < tour->open_count; chosen++)
        for (enum pick rest = PICK_NONE; rest <= PICK_ALL; rest++) {
            if (tour->changed < tour->open_count && chosen != tour->changed)
                continue;
            for (uint32_t i = 0; i < tour->open_count; i++)
                opened(tour, i)->picker.pick = rest;
            show_cuts_of(tour, chosen);
        }
}

// Until `draws` have been shown, or one after the other is nothing new.
static void show_random(struct tour *tour, int draws)
{
    for (int n = 0, known = 0; n < draws && known < KNOWN; n++) {
        for (uint32_t i = 0; i < tour->open_count; i++) {
            struct object *object = opened(tour, i);
            object->picker = (struct picker){.pick = (enum pick)draw(tour, PICKS),
                                             .at = draw(tour, object->count),
                                             .piece = draw(tour, 32),
                                             .seed = draw(tour, UINT64_MAX)};
        }
        known = show(tour) ? 0 : known + 1;
    }
}

// Shows the states at one place in the record; `changed` is what has just changed, if anything.
static void show_all(struct tour *tour, uint32_t changed, int draws)
{
    tour->open_count = 0;
    tour->changed = UINT32_MAX;
    for (uint32_t i = 0; i < tour->image.disk->inode_count; i++) {
        if (!tour->image.objects[i].count)
            continue;
        if (i == changed)
            tour->changed = tour->open_count;
        tour->open[tour->open_count++] = i;
    }
    show_masks(tour);
    show_cuts(tour);
    if (tour->open_count)
        show_random(tour, draws);
}

/* ------------------------------------------------------------------ the record */

static void add_pending(struct object *object, size_t number)
{
    if (object->count == object->room) {
        object->room = object->room ? 2 * object->room : 8;
        object->pending = need(realloc(object->pending, object->room * sizeof *object->pending));
    }
    object->pending[object->count++] = number;
}

static void make_durable(const struct crash_disk *disk, struct object *object)
{
    for (size_t at = 0; at < object->count; at++)
        crash_inode_apply(&object->durable, &disk->ops[object->pending[at]]);
    object->count = 0;
    object->hashed = 0;
}

// A flush makes no new states.
static void step(struct tour *tour, size_t number, int draws)
{
    const struct crash_disk *disk = tour->image.disk;
    const struct crash_op *op = &disk->ops[number];
    if (op->kind == CRASH_SYNC) {
        make_durable(disk, &tour->image.objects[op->inode]);
    } else if (op->kind == CRASH_MARK) {
        tour->watch->mark(tour->watch->user, op->target);
        crash_set_free(&tour->since);
        show_all(tour, UINT32_MAX, draws);
    } else {
        add_pending(&tour->image.objects[op->inode], number);
        show_all(tour, op->inode, draws);
    }
}

bool crash_explore(const struct crash_disk *disk, const struct crash_watch *watch, uint64_t seed,
                   int draws, struct crash_set *states)
{
    struct tour tour = {.image = {.disk = disk}, .watch = watch, .states = states, .random = seed};
    tour.image.objects = need(calloc(disk->inode_count, sizeof *tour.image.objects));
    tour.open = need(calloc(disk->inode_count, sizeof *tour.open));
    for (uint32_t i = 0; i < disk->inode_count; i++)
        if (i < disk->base_count)
            tour.image.objects[i].durable = crash_inode_copy(&disk->base[i]);
        else
            tour.image.objects[i].durable.directory = disk->inodes[i].directory;
    show_all(&tour, UINT32_MAX, draws);
    for (size_t number = 0; number < disk->op_count && !tour.failed; number++)
        step(&tour, number, draws);
    for (uint32_t i = 0; i < disk->inode_count; i++) {
        crash_inode_free(&tour.image.objects[i].durable);
        crash_inode_free(&tour.image.objects[i].now);
        free(tour.image.objects[i].pending);
    }
    free(tour.image.objects);
    free(tour.open);
    crash_set_free(&tour.since);
    return !tour.failed;
}
