"""Stores that really answer: S3 (moto) and a small GCS; a small data set; the real command led to them."""

from support.datasets import compilation_cache as compilation_cache
from support.datasets import local_command as local_command
from support.datasets import local_manifest as local_manifest
from support.datasets import unbroken as unbroken
from support.gcs import gcs_environment as gcs_environment
from support.gcs import gcs_server as gcs_server
from support.s3 import s3_environment as s3_environment
from support.s3 import s3_server as s3_server
