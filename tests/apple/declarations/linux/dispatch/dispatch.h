// Hand-written: the types of libdispatch that torch's MPSStream.h names.
#pragma once
typedef struct dispatch_queue_s* dispatch_queue_t;
typedef void (^dispatch_block_t)(void);
