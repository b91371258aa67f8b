"""Golden trajectories of the optimizers, by PyTorch in float64 (Lion by the paper's formulas).

    pip install torch numpy && python3 make_optimizers.py

writes, beside itself, optimizers_golden.safetensors:

    first, curvature, target, noise   F32: the problem
    <optimizer>.<variant>             F64: the weights after every step
    <optimizer>.<variant>.norm        F64: the 2-norm of every step's mean gradient, before clipping

No test needs torch: the file is in the tree. The gradient of a micro-batch is
curvature * (weight - target) + noise[step, micro-batch], a step's gradient the mean over its
micro-batches. Elements from SECOND on are in a second group, with half the learning rate and no
decay. Learning rates shrink from step to step.
"""

import math
import pathlib

import torch

from make_gpt2 import write_safetensors

ELEMENTS, SECOND, STEPS, MICRO_BATCHES = 24, 16, 8, 4
DECAY, CLIP, SKIPPED = 0.1, 2.0, 3

# Learning rate, beta1 (of SGD: momentum), beta2, epsilon, and whether its own decay is L2.
OPTIMIZERS = {
    "adamw": (0.05, 0.9, 0.99, 1e-4, False),
    "adam": (0.05, 0.9, 0.99, 1e-4, True),
    "sgd": (0.1, 0.0, 0.0, 0.0, True),
    "momentum": (0.03, 0.9, 0.0, 0.0, True),
    "nesterov": (0.03, 0.9, 0.0, 0.0, True),
    "lion": (0.02, 0.9, 0.99, 0.0, False),
    "adagrad": (0.3, 0.0, 0.0, 1e-4, True),
}

# Micro-batches, clipping, and decay: "none", the optimizer's "own", the "other" way.
VARIANTS = {
    "plain": (1, False, "none"),
    "clip": (1, True, "none"),
    "decay": (1, False, "own"),
    "other": (1, False, "other"),
    "accumulate": (MICRO_BATCHES, False, "none"),
    "skip": (MICRO_BATCHES, False, "own"),
    "all": (MICRO_BATCHES, True, "own"),
}

HERE = pathlib.Path(__file__).parent
closest = math.inf  # what Lion takes the sign of


class Lion(torch.optim.Optimizer):
    """Chen et al. 2023, Symbolic Discovery of Optimization Algorithms, algorithm 2."""

    def __init__(self, groups, betas, weight_decay):
        super().__init__(groups, {"betas": betas, "weight_decay": weight_decay})

    def step(self):
        global closest
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                g = p.grad + group["weight_decay"] * p.detach()
                c = beta1 * m + (1 - beta1) * g
                closest = min(closest, c.abs().min().item())
                with torch.no_grad():
                    p -= group["lr"] * c.sign()
                self.state[p]["m"] = beta2 * m + (1 - beta2) * g


def make(name, groups, l2):
    lr, beta1, beta2, eps, _ = OPTIMIZERS[name]
    groups[0]["weight_decay"] = DECAY if l2 else 0.0
    groups[1]["weight_decay"] = 0.0
    if name in ("adam", "adamw"):
        return torch.optim.Adam(groups, lr=lr, betas=(beta1, beta2), eps=eps)
    if name == "lion":
        return Lion(groups, (beta1, beta2), 0.0)
    if name == "adagrad":
        return torch.optim.Adagrad(groups, lr=lr, eps=eps)
    return torch.optim.SGD(groups, lr=lr, momentum=beta1, nesterov=name == "nesterov")


def train(name, variant, problem):
    micro_batches, clips, decay = VARIANTS[variant]
    l2 = OPTIMIZERS[name][4] == (decay == "own")
    first = problem["first"].double()
    weights = [first[:SECOND].clone().requires_grad_(), first[SECOND:].clone().requires_grad_()]
    groups = [{"params": [w]} for w in weights]
    if decay != "none" and not l2 and name in ("adam", "adamw"):
        groups[0]["weight_decay"], groups[1]["weight_decay"] = DECAY, 0.0
        lr, beta1, beta2, eps, _ = OPTIMIZERS[name]
        optimizer = torch.optim.AdamW(groups, lr=lr, betas=(beta1, beta2), eps=eps)
        shrinks = False
    else:
        optimizer = make(name, groups, l2 and decay != "none")
        shrinks = decay != "none" and not l2
    trace, norms = [], []
    for step in range(STEPS):
        whole = torch.cat([w.detach() for w in weights])
        slope = problem["curvature"].double() * (whole - problem["target"].double())
        gradient = slope + problem["noise"][step, :micro_batches].double().mean(0)
        weights[0].grad, weights[1].grad = gradient[:SECOND].clone(), gradient[SECOND:].clone()
        bound = CLIP if clips else math.inf
        norms.append(torch.nn.utils.clip_grad_norm_(weights, bound).item())
        for group, share in zip(optimizer.param_groups, (1.0, 0.5)):
            group["lr"] = OPTIMIZERS[name][0] * share * (1 - step / 16)
        if variant != "skip" or step != SKIPPED:
            if shrinks:
                with torch.no_grad():
                    weights[0] *= 1 - optimizer.param_groups[0]["lr"] * DECAY
            optimizer.step()
        trace.append(torch.cat([w.detach() for w in weights]))
    if clips:  # some steps are clipped, some are not
        assert min(norms) < 0.95 * CLIP and max(norms) > 1.05 * CLIP, norms
    return torch.stack(trace), torch.tensor(norms, dtype=torch.float64)


def main():
    generator = torch.Generator().manual_seed(20261122)

    def uniform(low, high, *shape):
        return low + (high - low) * torch.rand(shape, generator=generator, dtype=torch.float32)

    problem = {
        "first": uniform(-1, 1, ELEMENTS),
        "curvature": uniform(0.2, 0.6, ELEMENTS),
        "target": uniform(-1, 1, ELEMENTS),
        "noise": uniform(-0.2, 0.2, STEPS, MICRO_BATCHES, ELEMENTS),
    }
    problem["noise"][1::2] *= 8  # small steps and large ones
    golden = dict(problem)
    for name in OPTIMIZERS:
        for variant in VARIANTS:
            trace, norms = train(name, variant, problem)
            golden[f"{name}.{variant}"] = trace
            golden[f"{name}.{variant}.norm"] = norms
            print(f"{name}.{variant}: norms {norms.min():.3f} .. {norms.max():.3f}, "
                  f"moved {(trace[-1] - problem['first'].double()).abs().mean():.3f}")
    print(f"Lion takes the sign of no number below {closest:.1e}")
    assert closest > 1e-5  # far beyond what fp32 rounds off
    write_safetensors(HERE / "optimizers_golden.safetensors", golden)


if __name__ == "__main__":
    main()
