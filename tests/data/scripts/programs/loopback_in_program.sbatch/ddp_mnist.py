import os

import torch.distributed as dist

dist.init_process_group(
    "nccl",
    init_method="tcp://127.0.0.1:23456",
    rank=int(os.environ["SLURM_PROCID"]),
    world_size=int(os.environ["SLURM_NTASKS"]),
)
