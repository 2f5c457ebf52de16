// Hand-written: only what torch's MPSStream.h names.
#pragma once
#import <Metal/Metal.h>
@interface MPSCommandBuffer : NSObject <MTLCommandBuffer>
@end
