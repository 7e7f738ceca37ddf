/* SPDX-License-Identifier: Apache-2.0
 * The replayer: a recorded feed sent again as MoldUDP64, at a chosen rate. Also cffi's cdef. */
#ifndef NODEAGENT_REPLAY_ABI_H
#define NODEAGENT_REPLAY_ABI_H
#include "feed_abi.h"

#define NA_REPLAY_MAX_BYTES 0x40000000 /* of a capture's messages, held in memory */
#define NA_REPLAY_MAX_PACKET 1452      /* payload of a repacked packet: 1500 less IPv6 and UDP */

struct na_replay_config {
	int32_t fds[2];      /* connected UDP sockets, one a line */
	uint32_t lines;
	uint32_t per_packet; /* messages a packet; 0: as recorded (length-framed: 16) */
	uint64_t rate;       /* messages a second; 0: as fast as it goes */
	uint64_t count;      /* messages to send in all; 0: `loops` times through */
	uint64_t loops;      /* 0: until stopped */
	uint64_t first_seq;
	uint64_t drop_every[2]; /* each that many'th packet is withheld from that line; 0: none */
	uint32_t end_packets;   /* End of Session packets at the end */
	char session[10];
};

struct na_replay_counts {
	uint64_t messages, packets, loops; /* messages: sequence numbers used */
	uint64_t withheld;                 /* messages that went out on no line */
	uint64_t first_seq, last_seq;
	uint64_t heartbeats;
	uint64_t elapsed_ns;
	uint64_t slipped;                  /* times the schedule was given up: sending fell 100 ms behind */
};

struct na_replay;

/* Reads the capture on fd whole. 0; -ENOMEM; -EFBIG; -ENODATA: no message in it; -errno with *error. */
int na_replay_new(int fd, uint32_t format, struct na_replay **out, struct na_capture_error *error);
void na_replay_free(struct na_replay *replay);
/* Messages and packets of one time through, as they will be sent. */
void na_replay_size(const struct na_replay *replay, uint32_t per_packet, uint64_t *messages, uint64_t *packets);
/* Sends. 0 when done or stopped, -errno of sendmmsg. */
int na_replay_run(struct na_replay *replay, const struct na_replay_config *config,
		  struct na_replay_counts *counts);
/* From any thread or signal handler. */
void na_replay_stop(struct na_replay *replay);
/* A UDP socket connected to a group, sending by that interface. 0 or -errno with a sentence in why. */
int na_replay_open(const struct na_feed_line *line, int ttl, int *fd, char *why, size_t why_bytes);

#endif
