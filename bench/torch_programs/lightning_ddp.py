"""Lightning's DDP with its own launcher, SyncBatchNorm, metrics that are summed over ranks, and ModelCheckpoint."""
import glob
import os
import sys
import tempfile

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader, TensorDataset

LAUNCHER = sys.argv[1] if len(sys.argv) > 1 else "ddp"  # ddp_spawn, ddp_fork, ddp_notebook


class Model(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 1024), torch.nn.ReLU(),
                                       torch.nn.Linear(1024, 2))

    def training_step(self, batch, index):
        loss = torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        self.log("loss", loss)
        return loss

    def on_train_batch_end(self, outputs, batch, index):
        loss = self.all_gather(outputs["loss"].detach()).mean()
        if self.trainer.is_global_zero:
            print("step", self.trainer.global_step, "loss", loss.item(), flush=True)

    def validation_step(self, batch, index):
        self.log("val_loss", torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1]), sync_dist=True)

    def on_validation_epoch_end(self):
        if self.trainer.is_global_zero and not self.trainer.sanity_checking:
            print("result", self.trainer.callback_metrics["val_loss"].item(), flush=True)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def main():
    L.seed_everything(1)
    inputs = torch.randn(640, 256)
    data = TensorDataset(inputs, (inputs.sum(1) > 0).long())
    folder = os.environ.setdefault("OUTPUT", tempfile.mkdtemp())  # its launcher starts this program again: the same folder
    keep = ModelCheckpoint(folder, monitor="val_loss", save_top_k=1, filename="best")
    trainer = L.Trainer(accelerator="cpu", devices=2, strategy=LAUNCHER, max_epochs=2, callbacks=[keep], logger=False,
                        enable_progress_bar=False, enable_model_summary=False)
    model = Model()
    trainer.fit(model, DataLoader(data, batch_size=16, shuffle=True), DataLoader(data, batch_size=50))
    assert keep.best_model_path and glob.glob(folder + "/best*.ckpt"), "no checkpoint"
    trainer.validate(model, DataLoader(data, batch_size=50), ckpt_path=keep.best_model_path, verbose=False)


if __name__ == "__main__":
    main()
