"""transformers' Trainer on a small GPT-2 made from a configuration, with evaluation, checkpoints and resuming from
them."""
import json
import os
import tempfile

import torch
import torch.distributed as dist
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments, set_seed


class Text(torch.utils.data.Dataset):
    def __init__(self, count, seed):
        self.tokens = torch.randint(0, 500, (count, 64), generator=torch.Generator().manual_seed(seed))

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, i):
        return {"input_ids": self.tokens[i], "labels": self.tokens[i]}


class Print(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        if state.is_world_process_zero and "loss" in logs:
            print("step", state.global_step, "loss", logs["loss"], "gradient", logs["grad_norm"], flush=True)
        elif state.is_world_process_zero and "eval_loss" in logs:
            print("result", logs["eval_loss"], flush=True)


def main():
    set_seed(1)
    folder = os.environ.get("OUTPUT") or tempfile.gettempdir() + f"/trainer-{os.getppid()}"
    model = GPT2LMHeadModel(GPT2Config(vocab_size=500, n_positions=64, n_embd=128, n_layer=2, n_head=4))
    arguments = TrainingArguments(folder, use_cpu=True, ddp_backend="gloo", per_device_train_batch_size=2, max_steps=30, logging_steps=1,
                                  eval_strategy="steps", eval_steps=15, save_steps=20, report_to=[], disable_tqdm=True,
                                  logging_nan_inf_filter=False)
    trainer = Trainer(model, arguments, train_dataset=Text(400, 1), eval_dataset=Text(21, 2), callbacks=[Print])
    trainer.train()
    trainer.train(resume_from_checkpoint=os.path.join(folder, "checkpoint-20"))
    if trainer.is_world_process_zero():
        with open(os.path.join(folder, "checkpoint-20", "trainer_state.json"), encoding="utf-8") as file:
            print("result", json.load(file)["global_step"])
    dist.barrier()


if __name__ == "__main__":
    main()
