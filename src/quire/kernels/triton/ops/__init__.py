"""Operations that choose a kernel by device and shape and launch it."""
