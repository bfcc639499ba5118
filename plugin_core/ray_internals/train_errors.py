"""Exceptions that Ray Train does not export."""

from ray.train.v2._internal.exceptions import RayTrainError as RayTrainError
from ray.train.v2._internal.exceptions import UserExceptionWithTraceback as UserExceptionWithTraceback
