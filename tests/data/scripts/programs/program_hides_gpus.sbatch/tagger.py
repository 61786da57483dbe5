import os

os.environ["CUDA_VISIBLE_DEVICES"] = "0"

import torch

model = torch.nn.LSTM(64, 128).to("cuda")
