"""What users would run instead: plain PyTorch, DDP, torch.distributed.pipelining. One process per rank, as they do."""
