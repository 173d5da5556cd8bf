# SPDX-License-Identifier: Apache-2.0
"""A model of Hugging Face transformers with Ferry in its MoE blocks: one line. Trains a few steps, then writes text.

    python3 examples/patch_model.py                                    (a small random Qwen3-MoE)
    torchrun --nproc-per-node=2 examples/patch_model.py                (its experts spread over two processes)
    torchrun --nproc-per-node=2 examples/patch_model.py --model FOLDER (a checkpoint of a Qwen3-MoE, OLMoE, Mixtral or
                                                                        DeepSeek-V3 model)
"""
import argparse
import os

import torch
import torch.distributed as dist
import transformers
from ferry_moe.patching import full_state_dict, patch


def small_model():
    torch.manual_seed(0)
    return transformers.Qwen3MoeForCausalLM(transformers.Qwen3MoeConfig(
        vocab_size=256, hidden_size=64, intermediate_size=128, moe_intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=16, num_experts=8, num_experts_per_tok=2,
        max_position_embeddings=256, eos_token_id=None)).to(torch.bfloat16)


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--model", help="folder of a checkpoint; default: a small random model")
    p.add_argument("--save", help="write the trained model to this folder, in its original format")
    o = p.parse_args()
    rank, ranks = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    gpu = torch.cuda.device_count() >= int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0))) if gpu else torch.device("cpu")
    if gpu:
        torch.cuda.set_device(device)
    if ranks > 1:
        dist.init_process_group("nccl" if gpu else "gloo")

    model = (transformers.AutoModelForCausalLM.from_pretrained(o.model, torch_dtype=torch.bfloat16) if o.model
             else small_model()).to(device)
    patch(model, max_tokens=4096)

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    text = torch.arange(64, device=device).repeat(2, 2) % 256
    for step in range(10):
        loss = model(input_ids=text, labels=text, output_router_logits=True).loss
        # Gradients of experts are sums over the tokens of all ranks; so are those of the rest, once they are added up.
        (loss / ranks).backward()
        if ranks > 1:
            for name, p in model.named_parameters():
                if ".experts." not in name and p.grad is not None:
                    dist.all_reduce(p.grad)
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0:
            print(f"step {step + 1} loss {loss.item():.4f}", flush=True)

    model.eval()
    written = model.generate(text[:1, :8], max_new_tokens=16, do_sample=False, pad_token_id=0)
    if rank == 0:
        print("tokens", written[0].tolist(), flush=True)
    if o.save:
        state = full_state_dict(model)
        if rank == 0:
            model.save_pretrained(o.save, state_dict=state)
    if ranks > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
