"""A training step on four simulated devices: a plan of your own, what it costs, and that it computes what torch does.

python examples/several_devices.py
mlirstitch plan examples/several_devices.py:step --mesh dp=2,tp=2 --plan dp+tp
"""

import torch

import mlirstitch


def model_and_batch():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 16))
    return model, torch.randn(8, 16), torch.randn(8, 16)


def step():
    """The factory that the command line calls."""
    model, x, y = model_and_batch()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return mlirstitch.import_step(model, torch.nn.functional.mse_loss, optimizer, x, targets=y)


def own_plan(plan: mlirstitch.Plan) -> None:
    plan.trans("hidden", space="tp")  # the width between the two layers: a sum follows
    plan.trans("batch", space="dp", time=2)  # each of the dp devices computes its part in two micro-batches


def main() -> None:
    from mlirstitch.driver.partition.reading import prepared

    imported = step()
    made = mlirstitch.partition(prepared(imported.mlir), own_plan, mlirstitch.Mesh.of(dp=2, tp=2))
    print(f"{1e6 * made.timeline.seconds:.0f} us a step, {max(made.timeline.peak_bytes)} bytes a device")

    model, x, y = model_and_batch()
    given = {**dict(zip(imported.inputs, (x, y), strict=True)), **imported.weights}
    results = made.whole_by_name(made.run([given[i].detach().numpy() for i in range(len(given))]))

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
    error = max(abs(results[name] - w.detach().numpy()).max() for name, w in model.named_parameters())
    print("as torch" if error < 1e-5 else f"differs from torch by {error}")


if __name__ == "__main__":
    main()
