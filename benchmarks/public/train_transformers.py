"""transformers' Trainer with a small BERT of random weights and a tokeniser at each sample."""

import random

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

WORDS = [f"word{number}" for number in range(2000)]


class Reviews(torch.utils.data.Dataset):
    def __len__(self):
        return 20_000

    def __getitem__(self, number):
        text = " ".join(random.Random(number).choices(WORDS, k=32))
        ids = [WORDS.index(word) for word in text.split()]
        return {"input_ids": torch.tensor(ids), "labels": number % 2}


config = BertConfig(
    vocab_size=2000,
    hidden_size=64,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=128,
)
arguments = TrainingArguments(
    output_dir="out",
    num_train_epochs=1,
    per_device_train_batch_size=64,
    use_cpu=True,
    report_to=[],
    save_strategy="no",
    disable_tqdm=True,
    dataloader_pin_memory=False,
)
Trainer(BertForSequenceClassification(config), arguments, train_dataset=Reviews()).train()
