"""python with_transformers.py MAX: a training of transformers' Trainer held to a budget of MAX syncs per step."""

import sys
import tempfile

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

from pytest_gpusync.callbacks.transformers import SyncBudget

data = [{"input_ids": torch.randint(0, 50, (16,)), "labels": torch.tensor(number % 2)} for number in range(200)]
size = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
model = BertForSequenceClassification(BertConfig(vocab_size=50, **size))
guard = SyncBudget(max=int(sys.argv[1]), steps=10)
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        folder, max_steps=20, per_device_train_batch_size=8, report_to=[], save_strategy="no", disable_tqdm=True
    )
    Trainer(model, arguments, train_dataset=data, callbacks=[guard]).train()
print(guard.verdict.sentence)
