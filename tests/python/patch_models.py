# SPDX-License-Identifier: Apache-2.0
"""Small random models of every family that ferry_moe.patch knows, for its tests."""
import torch
import transformers

SIZES = dict(vocab_size=97, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
             max_position_embeddings=128, initializer_range=0.02, pad_token_id=0, bos_token_id=1, eos_token_id=None)
FAMILIES = {
    "qwen3_moe": (transformers.Qwen3MoeConfig, transformers.Qwen3MoeForCausalLM, dict(
        intermediate_size=96, moe_intermediate_size=48, num_experts=8, num_experts_per_tok=3, head_dim=16,
        norm_topk_prob=True)),
    "qwen3_moe_raw": (transformers.Qwen3MoeConfig, transformers.Qwen3MoeForCausalLM, dict(
        intermediate_size=96, moe_intermediate_size=48, num_experts=7, num_experts_per_tok=2, head_dim=16,
        norm_topk_prob=False, mlp_only_layers=[0], num_hidden_layers=3)),
    "olmoe": (transformers.OlmoeConfig, transformers.OlmoeForCausalLM, dict(
        intermediate_size=40, num_experts=8, num_experts_per_tok=4)),
    "mixtral": (transformers.MixtralConfig, transformers.MixtralForCausalLM, dict(
        intermediate_size=56, num_local_experts=4, num_experts_per_tok=2)),
    "deepseek_v3": (transformers.DeepseekV3Config, transformers.DeepseekV3ForCausalLM, dict(
        intermediate_size=96, moe_intermediate_size=40, n_routed_experts=8, num_experts_per_tok=3, n_group=4,
        topk_group=2, n_shared_experts=2, routed_scaling_factor=2.5, norm_topk_prob=True, first_k_dense_replace=1,
        num_hidden_layers=3, num_key_value_heads=4, q_lora_rank=24, kv_lora_rank=16, qk_rope_head_dim=8,
        qk_nope_head_dim=8, v_head_dim=16)),
}
HAS_ROUTER_LOGITS = ("qwen3_moe", "qwen3_moe_raw", "olmoe", "mixtral")


def make(family, device="cpu", seed=0):
    config, model, sizes = FAMILIES[family]
    torch.manual_seed(seed)
    made = model(config(**{**SIZES, **sizes}))
    for name, buffer in made.named_buffers():
        if name.endswith("e_score_correction_bias"):
            buffer.normal_(0, 0.2)
    made = made.to(torch.bfloat16)
    for module in made.modules():  # as from_pretrained keeps them
        if type(module).__name__ == "DeepseekV3TopkRouter":
            module.float()
    return made.to(device).eval()


def _blocks(model):
    return [m for m in model.modules() if hasattr(m, "gate") and hasattr(m, "experts")]


def _cast_around(block, inside, outside):
    """What goes into the block and what comes out of it, gradients too, are rounded on the way."""
    block.register_forward_pre_hook(lambda _, args: (args[0].to(inside), *args[1:]))
    block.register_forward_hook(lambda _, __, out: (out[0].to(outside), *out[1:]) if isinstance(out, tuple) else
                                out.to(outside))


def _one_by_one(model):
    """Experts as plain products: grouped ones are promised for BF16 alone."""
    if hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("eager")
    return model


def precise(model):
    return _one_by_one(model).float()


def precise_blocks(model):
    """F32 inside the MoE blocks, the model around them as it is: no block can come closer to what is meant."""
    for block in _blocks(model):
        _cast_around(block.float(), torch.float32, torch.bfloat16)
    return _one_by_one(model)


def precise_around(model):
    """F32 but for the experts: routers too, whose BF16 logits would hide what the experts' own roundings do."""
    model.float()
    for block in _blocks(model):
        _cast_around(block.bfloat16(), torch.bfloat16, torch.float32)
        block.gate.float().register_forward_pre_hook(lambda _, args: (args[0].float(),))
    return model


def tokens(device="cpu", sequences=2, length=24, seed=1):
    return torch.randint(2, 97, (sequences, length), generator=torch.Generator().manual_seed(seed)).to(device)


def apart(a, b):
    """Relative L2 distance of a from b."""
    return ((a.double() - b.double()).norm() / b.double().norm().clamp_min(1e-30)).item()
