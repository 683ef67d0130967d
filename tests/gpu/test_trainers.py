"""Trainings by the trainers of Hugging Face and Lightning, whole and step by step, where these are installed."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

STEPS = 14


def test_a_trainer_of_hugging_face(gpu_train, tmp_path):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    data = [{name: torch.randint(0, 64, (16,)) for name in ("input_ids", "labels")} for _ in range(64)]
    config = transformers.GPT2Config(vocab_size=64, n_positions=16, n_embd=16, n_layer=1, n_head=2)
    trainer = transformers.Trainer(
        model=transformers.GPT2LMHeadModel(config),
        args=transformers.TrainingArguments(
            str(tmp_path),
            max_steps=STEPS,
            per_device_train_batch_size=4,
            logging_steps=2,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
        ),
        train_dataset=data,
    )
    run = gpu_train.whole(trainer.train)
    assert (run.steps, len(run.per_step)) == (STEPS, STEPS - 3)
    # It reads what it logs, every second step.
    assert max(run.syncs_per_step) > min(run.syncs_per_step)
    batch = {name: values.cuda()[None] for name, values in data[0].items()}
    assert gpu_train(trainer.training_step, [batch], steps=6, warmup=2).steps == 6


def test_a_trainer_of_lightning(gpu_train):
    lightning = pytest.importorskip("lightning")

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = torch.nn.Linear(8, 1)

        def training_step(self, batch, batch_idx):
            return self.net(batch[0]).square().mean()

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters())

    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(128, 8)), batch_size=4)
    trainer = lightning.Trainer(
        max_steps=STEPS,
        accelerator="gpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=False,
    )
    module = Module()
    run = gpu_train.whole(trainer.fit, module, loader)
    assert (run.steps, len(run.per_step)) == (STEPS, STEPS - 3)
    batches = [[torch.randn(4, 8, device="cuda")]]
    gpu_train(module.cuda().training_step, batches, steps=6, warmup=2).assert_syncs(max=0)
