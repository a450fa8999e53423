"""What worlds and the rest of rlstack share: files, packages, processes, progress, tensors, compiling."""
