# SPDX-License-Identifier: Apache-2.0
"""Which experts a rank has, and all of them from all ranks."""
import torch


def own_experts(experts, rank, ranks):
    """Contiguous; the first `experts` mod `ranks` ranks have one more."""
    share, more = divmod(experts, ranks)
    first = rank * share + min(rank, more)
    return range(first, first + share + (rank < more))


def gather_experts(local, experts, group):
    """Collective. Of a tensor [experts of this rank, ...] the one over all ranks, on every rank. `group` is a process
    group of torch.distributed, or None: this rank has all."""
    if group is None:
        return local
    ranks = torch.distributed.get_world_size(group)
    most = len(own_experts(experts, 0, ranks))
    padded = local.new_zeros((most,) + local.shape[1:])
    padded[:local.shape[0]] = local
    every = [torch.empty_like(padded) for _ in range(ranks)]
    torch.distributed.all_gather(every, padded, group=group)
    return torch.cat([every[r][:len(own_experts(experts, r, ranks))] for r in range(ranks)])
