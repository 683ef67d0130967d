"""python with_lightning.py MAX: a Lightning training held to a budget of MAX syncs per batch."""

import sys

import torch

try:
    import lightning.pytorch as pl
except ImportError:
    import pytorch_lightning as pl

from pytest_gpusync.callbacks.lightning import SyncBudget


class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)

    def training_step(self, batch, number):
        loss = self.layer(batch).square().mean()
        self.log("loss", loss.item())
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


guard = SyncBudget(max=int(sys.argv[1]), steps=10)
options = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
trainer = pl.Trainer(accelerator="cuda", devices=1, max_steps=20, callbacks=[guard], **options)
trainer.fit(Model(), torch.utils.data.DataLoader(torch.randn(400, 8), batch_size=8))
print(guard.verdict.sentence)
