import os
import torch
import torch.distributed as dist

rank = int(os.environ["SLURM_PROCID"])
local = int(os.environ["SLURM_LOCALID"])
dist.init_process_group("nccl", rank=rank, world_size=int(os.environ["WORLD_SIZE"]))
torch.cuda.set_device(local)
