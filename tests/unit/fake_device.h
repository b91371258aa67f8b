/**
 * tests/unit/fake_device.h: a device whose memory no processor reaches and whose work is done late:
 * by a thread of its own, in the order of each stream, and of several streams in any order. Who
 * does not wait for something sees wrong bytes, and who touches its memory a signal.
 */
#ifndef TESTS_UNIT_FAKE_DEVICE_H
#define TESTS_UNIT_FAKE_DEVICE_H

#include "base/device.h"

/** So many of them; streams are of one. */
#define FAKE_DEVICES 3

extern const struct base_device fake_device;

/** Has each device have so many bytes of memory, of which one has free what is not allocated there;
 * SIZE_MAX, as at first: no end of them. */
void fake_device_room(size_t bytes);

/** Memories, fixed memories, streams and events that there are. */
unsigned fake_device_live(void);

/** What was done that may not be: NULL if nothing was. */
const char *fake_device_complaint(void);

#endif
