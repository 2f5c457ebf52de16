// Hand-written: only what torch's MPSStream.h names.
#pragma once
#import <Foundation/Foundation.h>
@class MPSGraph, MPSGraphExecutionDescriptor, MPSGraphCompilationDescriptor;
