"""What happens to each of Ray's own examples when it is given to a step unchanged.

Keyed by file of `ray/train/examples` and `ray/tune/examples`. A function is named as a user would name it in a spec,
and gets a small config through the arguments that it has.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

RAY = Path(importlib.util.find_spec("ray").origin).parent  # type: ignore[union-attr,arg-type]
FOLDERS = ("train/examples", "tune/examples")


@dataclass(frozen=True)
class Trains:
    """A training with it reports `metrics`, `reports` times. `fields`: of its TrainSpec; `data`: the datasets that it
    asks for, given in place of those that the example downloads; `mlflow`: tracked by us."""

    function: str
    metrics: str
    reports: int
    config: dict[str, Any] = field(default_factory=dict)
    fields: dict[str, Any] = field(default_factory=dict)
    checkpoint: bool = False
    data: tuple[str, ...] = ()
    mlflow: bool = False


@dataclass(frozen=True)
class Searches:
    """A search over `space` with it finds the best `metric`. `fields`: of its TuneSpec."""

    function: str
    metric: str
    space: dict[str, Any]
    config: dict[str, Any] = field(default_factory=dict)
    fields: dict[str, Any] = field(default_factory=dict)
    checkpoint: bool = False


@dataclass(frozen=True)
class Fails:
    """It is submitted, and ends with an error of one sentence."""

    function: str
    words: str
    config: dict[str, Any] = field(default_factory=dict)
    fields: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Refused:
    """Nothing is submitted. `module`: if it is not the example's own."""

    name: str
    words: str
    module: str = ""


@dataclass(frozen=True)
class RefusedSpec:
    """A search is refused for what the example puts around its function."""

    fields: dict[str, Any]
    words: str


@dataclass(frozen=True)
class Needs:
    """The module imports a package that this environment lacks."""

    package: str


@dataclass(frozen=True)
class LeftOut:
    why: str


A_CLASS = "expected a function"
FITS = "which fits a trainer or tuner of its own; expected the function that it trains with"
#: `easy_objective` of many examples: a score of width and height.
WIDTHS = {"width": {"uniform": [1, 20]}, "height": {"uniform": [-100, 100]}}
WIDE = {"width": 2.0, "height": 3.0, "steps": 2}
LOSS = ("iterations mean_loss", 2, WIDE)
TREES = {"objective": "binary:logistic", "eval_metric": ["logloss", "error"]}
LEAVES = {"objective": "binary", "metric": ["binary_error", "binary_logloss"], "verbose": -1, "num_iterations": 3}
ASHA = {"type": "asha", "max_t": 4, "grace_period": 1, "reduction_factor": 2}
LR = {"lr": {"uniform": [0.0001, 0.02]}}
#: What a population of `pbt_function` needs: checkpoints as often as it changes.
PERTURBED = {"checkpoint_interval": 2, "some_other_factor": 1}


def _population(kind: str, changes: str, values: Any) -> dict[str, Any]:
    scheduler = {"type": kind, "perturbation_interval": 2, changes: {"train_loop_config": {"lr": values}}}
    # each trial ends with a checkpoint, even one that took over another's: which one is best is a matter of chance
    return {"scheduler": scheduler, "num_samples": 2, "mode": "max", "stop": {"training_iteration": 6}}


EXAMPLES: dict[str, tuple[Any, ...]] = {
    # ---- Ray Train
    "train/examples/horovod/horovod_example.py": (Needs("horovod"),),
    "train/examples/horovod/horovod_pytorch_example.py": (Needs("horovod"),),
    "train/examples/horovod/horovod_tune_example.py": (Needs("horovod"),),
    "train/examples/pytorch/torch_data_prefetch_benchmark/auto_pipeline_for_host_to_device_data_transfer.py": (
        Fails(
            "train_func",
            "Tried to instantiate dummy base class Event",
            {"data_size": 8, "hidden_size": 1},
            {"framework": "torch"},
        ),
        Refused("train_linear", FITS),
    ),
    "train/examples/pytorch/torch_fashion_mnist_example.py": (Needs("torchvision"),),
    "train/examples/pytorch/torch_linear_example.py": (
        Trains(
            "train_func",
            "loss",
            2,
            {"epochs": 2, "data_size": 40, "val_size": 40, "batch_size": 4},
            {"framework": "torch", "scaling_config": {"num_workers": 2}},
            checkpoint=True,
        ),
        Refused("train_linear", FITS),
    ),
    "train/examples/pytorch/torch_quick_start.py": (Needs("torchvision"),),
    "train/examples/pytorch/torch_regression_example.py": (
        Trains(
            "train_func",
            "loss",
            2,
            {"epochs": 2},
            {"framework": "torch", "scaling_config": {"num_workers": 2}},
            checkpoint=True,
            data=("train", "validation"),
        ),
        Refused("train_regression", FITS),
    ),
    "train/examples/pytorch_geometric/distributed_sage_example.py": (Needs("torch_geometric"),),
    "train/examples/tf/tensorflow_autoencoder_example.py": (Needs("tensorflow_datasets"),),
    "train/examples/tf/tensorflow_mnist_example.py": (LeftOut("its train_func downloads MNIST"),),
    "train/examples/tf/tensorflow_quick_start.py": (LeftOut("its functions download MNIST"),),
    "train/examples/tf/tensorflow_regression_example.py": (
        Trains(
            "train_func",
            "loss mean_squared_error",
            2,
            {"epochs": 2, "batch_size": 8},
            {"framework": "tensorflow", "scaling_config": {"num_workers": 2}},
            checkpoint=True,
            data=("train",),
        ),
    ),
    # ---- Ray Tune
    "tune/examples/async_hyperband_example.py": (
        Searches("easy_objective", "mean_loss", WIDTHS, {"steps": 4}, {"scheduler": ASHA, "num_samples": 2}),
    ),
    "tune/examples/ax_example.py": (
        Trains(
            "easy_objective",
            "timesteps_total hartmann6 l2norm",
            2,
            {"iterations": 2, **{f"x{i}": 0.5 for i in range(1, 7)}},
        ),
        RefusedSpec({"search_alg": "ax"}, "search_alg: got 'ax', whose package is not installed on the cluster"),
    ),
    "tune/examples/bayesopt_example.py": (
        Trains("easy_objective", *LOSS),
        RefusedSpec({"search_alg": "bayesopt"}, "got 'bayesopt', whose package is not installed on the cluster"),
    ),
    "tune/examples/bohb_example.py": (
        Refused("MyTrainableClass", A_CLASS),
        RefusedSpec({"scheduler": "bohb"}, "scheduler.type: got 'bohb'; expected 'fifo', 'asha'"),
    ),
    "tune/examples/cifar10_pytorch.py": (Needs("torchvision"),),
    "tune/examples/custom_checkpointing_with_callback.py": (Refused("OptimizationTrainable", A_CLASS),),
    "tune/examples/custom_func_checkpointing.py": (
        Searches(
            "train_func",
            "mean_loss",
            {"width": {"randint": [10, 100]}, "height": {"loguniform": [10, 100]}},
            fields={"num_samples": 2, "stop": {"training_iteration": 2}},
            checkpoint=True,
        ),
    ),
    "tune/examples/hyperband_example.py": (Refused("MyTrainableClass", A_CLASS, module="ray.tune.utils.mock_trainable"),),
    "tune/examples/hyperband_function_example.py": (
        Searches(
            "train_func",
            "episode_reward_mean",
            {"height": {"uniform": [0, 100]}},
            fields={"scheduler": "hyperband", "num_samples": 2, "mode": "max", "stop": {"training_iteration": 4}},
            checkpoint=True,
        ),
    ),
    "tune/examples/hyperopt_conditional_search_space_example.py": (Needs("hyperopt"),),
    "tune/examples/lightgbm_example.py": (
        Searches(
            "train_breast_cancer",
            "binary_error",
            {"num_leaves": {"randint": [10, 50]}},
            LEAVES,
            {"num_samples": 2},
            checkpoint=True,
        ),
        Trains("train_breast_cancer_cv", "binary_error binary_logloss_stdv", 3, LEAVES, checkpoint=True),
    ),
    "tune/examples/logging_example.py": (Trains("easy_objective", *LOSS),),
    "tune/examples/mlflow_example.py": (
        Trains("train_function", *LOSS),
        Trains("train_function_mlflow", *LOSS, mlflow=True),
        Refused("tune_with_callback", FITS),
        Refused("tune_with_setup", FITS),
    ),
    "tune/examples/mlflow_ptl.py": (Needs("datasets"),),
    "tune/examples/mnist_ptl_mini.py": (Needs("datasets"),),
    "tune/examples/mnist_pytorch.py": (Needs("torchvision"),),
    "tune/examples/mnist_pytorch_trainable.py": (Needs("torchvision"), Refused("TrainMNIST", A_CLASS)),
    "tune/examples/nevergrad_example.py": (
        Trains("easy_objective", *LOSS),
        RefusedSpec({"search_alg": "nevergrad"}, "got 'nevergrad', whose package is not installed on the cluster"),
    ),
    "tune/examples/optuna_define_by_run_example.py": (
        Trains("easy_objective", *LOSS),
        RefusedSpec({"search_alg": {"type": "optuna", "space": print}}, "search_alg.options.space: got <built-in function"),
    ),
    "tune/examples/optuna_example.py": (
        Searches(
            "easy_objective",
            "mean_loss",
            WIDTHS,
            {"steps": 2},
            {"search_alg": "optuna", "scheduler": ASHA, "num_samples": 2},
        ),
        Refused("run_optuna_tune", FITS),
    ),
    "tune/examples/optuna_multiobjective_example.py": (
        Trains("easy_objective", "iterations loss gain", 2, WIDE),
        RefusedSpec({"metric": ["loss", "gain"]}, "metric: got ['loss', 'gain']; expected a valid string"),
    ),
    "tune/examples/pb2_example.py": (
        Searches(
            "pbt_function",
            "mean_accuracy",
            LR,
            PERTURBED,
            _population("pb2", "hyperparam_bounds", [0.0001, 0.02]),
            checkpoint=True,
        ),
    ),
    "tune/examples/pb2_ppo_example.py": (LeftOut("a script without a function, for RLlib"),),
    "tune/examples/pbt_convnet_example.py": (Needs("torchvision"), Refused("PytorchTrainable", A_CLASS)),
    "tune/examples/pbt_convnet_function_example.py": (Needs("torchvision"),),
    "tune/examples/pbt_dcgan_mnist/common.py": (LeftOut("helpers of the two beside it"),),
    "tune/examples/pbt_dcgan_mnist/pbt_dcgan_mnist_func.py": (Needs("torchvision"),),
    "tune/examples/pbt_dcgan_mnist/pbt_dcgan_mnist_trainable.py": (
        Needs("torchvision"),
        Refused("PytorchTrainable", A_CLASS),
    ),
    "tune/examples/pbt_example.py": (Refused("PBTBenchmarkExample", A_CLASS),),
    "tune/examples/pbt_function.py": (
        Searches(
            "pbt_function",
            "mean_accuracy",
            LR,
            PERTURBED,
            _population("pbt", "hyperparam_mutations", {"uniform": [0.0001, 0.02]}),
            checkpoint=True,
        ),
        Refused("run_tune_pbt", FITS),
    ),
    "tune/examples/pbt_memnn_example.py": (Refused("MemNNModel", A_CLASS),),
    "tune/examples/pbt_ppo_example.py": (Needs("gymnasium"),),
    "tune/examples/pbt_transformers/pbt_transformers.py": (LeftOut("it downloads GLUE and a BERT, for transformers 4"),),
    "tune/examples/pbt_transformers/utils.py": (LeftOut("helpers of the one beside it"),),
    "tune/examples/pbt_tune_cifar10_with_keras.py": (Refused("Cifar10Model", A_CLASS),),
    "tune/examples/tf_mnist_example.py": (Refused("MNISTTrainable", A_CLASS),),
    "tune/examples/tune_basic_example.py": (
        Searches("easy_objective", "mean_loss", {**WIDTHS, "activation": {"grid_search": ["relu", "tanh"]}}, {"steps": 2}),
    ),
    "tune/examples/tune_mnist_keras.py": (LeftOut("its train_mnist downloads MNIST"),),
    "tune/examples/utils.py": (LeftOut("helpers of other examples"),),
    "tune/examples/xgboost_dynamic_resources_example.py": (
        Trains("train_breast_cancer", "eval-logloss eval-error", 10, {**TREES, "max_depth": 2}, checkpoint=True),
        Refused("tune_xgboost", FITS),
    ),
    "tune/examples/xgboost_example.py": (
        Searches(
            "train_breast_cancer",
            "test-logloss",
            {"max_depth": {"randint": [1, 9]}, "eta": {"loguniform": [1e-4, 1e-1]}},
            TREES,
            {"scheduler": ASHA, "num_samples": 2},
            checkpoint=True,
        ),
        # in Ray Tune too: Ray's callback saves the model at the end, which a cross-validation's model does not support
        Fails("train_breast_cancer_cv", "AttributeError: '_PackedBooster' object has no attribute 'save_model'", TREES),
        Refused("tune_xgboost", FITS),
    ),
}


def module_of(path: str) -> str:
    return "ray." + path.removesuffix(".py").replace("/", ".")


def cases(*kinds: type) -> dict[str, tuple[str, Any]]:
    """The cases of these kinds: short name → the module, and the case."""
    found = {}
    for path, all_of_it in EXAMPLES.items():
        for case in all_of_it:
            if isinstance(case, kinds):
                what = getattr(case, "function", None) or getattr(case, "name", None) or type(case).__name__
                found[f"{Path(path).stem}-{what}"] = (module_of(path), case)
    return found
