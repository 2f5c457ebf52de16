// TMF_FOR_DIMS(Dk, Dv) for every pair of head dims that there are kernels for.
#if TMF_DIMS(32, 32)
TMF_FOR_DIMS(32, 32)
#endif
#if TMF_DIMS(32, 64)
TMF_FOR_DIMS(32, 64)
#endif
#if TMF_DIMS(32, 128)
TMF_FOR_DIMS(32, 128)
#endif
#if TMF_DIMS(64, 32)
TMF_FOR_DIMS(64, 32)
#endif
#if TMF_DIMS(64, 64)
TMF_FOR_DIMS(64, 64)
#endif
#if TMF_DIMS(64, 128)
TMF_FOR_DIMS(64, 128)
#endif
#if TMF_DIMS(128, 32)
TMF_FOR_DIMS(128, 32)
#endif
#if TMF_DIMS(128, 64)
TMF_FOR_DIMS(128, 64)
#endif
#if TMF_DIMS(128, 128)
TMF_FOR_DIMS(128, 128)
#endif
