/**
 * tests/cuda/room.h: what ranks are told where a GPU has enough memory, or too little.
 */
#ifndef TESTS_CUDA_ROOM_H
#define TESTS_CUDA_ROOM_H

/** Runs the tests, most of them only with a driver whose memory ends where they say. Returns how
 * many have failed. */
int room_tests(void);

/** Runs those for where there is no NCCL. */
int room_tests_without_nccl(void);

#endif
