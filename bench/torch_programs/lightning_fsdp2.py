"""Lightning's ModelParallelStrategy: FSDP2 under its Trainer, with ModelCheckpoint. (Its FSDPStrategy refuses the CPU.)"""
import glob
import os
import tempfile

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.strategies import ModelParallelStrategy
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, TensorDataset


class Model(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 1024), torch.nn.ReLU(),
                                       torch.nn.Linear(1024, 2))

    def configure_model(self):
        mesh = self.device_mesh["data_parallel"]
        if not isinstance(self.net[0].weight, torch.distributed.tensor.DTensor):
            for layer in self.net[::2]:
                fully_shard(layer, mesh=mesh)
            fully_shard(self.net, mesh=mesh)

    def training_step(self, batch, index):
        loss = torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        self.log("loss", loss, sync_dist=True)
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
    strategy = ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=1, process_group_backend="gloo")
    trainer = L.Trainer(accelerator="cpu", devices=2, strategy=strategy, max_epochs=2, callbacks=[keep], logger=False,
                        enable_progress_bar=False, enable_model_summary=False)
    model = Model()
    trainer.fit(model, DataLoader(data, batch_size=16, shuffle=True), DataLoader(data, batch_size=50))
    assert keep.best_model_path and glob.glob(folder + "/best*.ckpt/*.distcp"), "no checkpoint"
    trainer.validate(model, DataLoader(data, batch_size=50), ckpt_path=keep.best_model_path, verbose=False)


if __name__ == "__main__":
    main()
