import idr_torch
import torch
import torch.distributed as dist

dist.init_process_group(backend="nccl", init_method="env://", world_size=idr_torch.size, rank=idr_torch.rank)
torch.cuda.set_device(idr_torch.local_rank)
