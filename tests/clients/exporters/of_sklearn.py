"""Estimators of scikit-learn that measure distances, exported by skl2onnx."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from exported import Feed, main, numbers, save_runs
from skl2onnx import to_onnx
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, RationalQuadratic
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor

X = numbers(12, 3, seed=1)
y = (X @ np.array([1.0, -2.0, 0.5], np.float32)).astype(np.float32)


def save(estimator: Any, path: Path, options: Any = None) -> None:
    target = (y > 0).astype(np.int64) if isinstance(estimator, KNeighborsClassifier) else y
    estimator.fit(X, target)
    kept = {id(estimator): options} if options else None
    onnx.save(to_onnx(estimator, X[:1], options=kept, target_opset=17), path)

    def compute(feed: Feed) -> list[Any]:
        found = estimator.predict(feed["X"])
        if isinstance(estimator, KNeighborsClassifier):
            return [found, estimator.predict_proba(feed["X"]).astype(np.float32)]
        return [found.astype(np.float32).reshape(-1, 1)]

    save_runs(path, [{"X": numbers(n, 3, seed=n)} for n in (1, 4)], compute)


if __name__ == "__main__":
    main(
        {
            "knn_euclidean": lambda path: save(KNeighborsRegressor(3), path),
            "knn_manhattan": lambda path: save(KNeighborsRegressor(3, metric="manhattan"), path),
            "knn_classifier": lambda path: save(KNeighborsClassifier(3), path, {"zipmap": False}),
            "gaussian_process": lambda path: save(
                GaussianProcessRegressor(ConstantKernel(2.0) * RBF(1.5), alpha=0.1, optimizer=None), path
            ),
            "gaussian_process_rational": lambda path: save(
                GaussianProcessRegressor(RationalQuadratic(1.0, 1.5), alpha=0.1, optimizer=None), path
            ),
        }
    )
