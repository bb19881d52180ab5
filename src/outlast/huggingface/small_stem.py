"""A ResNet with a stem for small pictures as transformers loads it: its own class, one convolution put in.

transformers' ResNet begins with a convolution of 7 x 7 and a pooling, each of stride 2. The folder of a model
with the small stem brings the file below, which ``from_pretrained(..., trust_remote_code=True)`` runs. Its
model type is its own, so that nothing loads it as an ordinary ResNet.
"""

MODEL_TYPE = "outlast_resnet"
FILE_NAME = "modeling_outlast_resnet.py"
CLASS_NAME = "OutlastResNetForImageClassification"
AUTO_MAP = {
    "AutoConfig": "modeling_outlast_resnet.OutlastResNetConfig",
    "AutoModelForImageClassification": f"modeling_outlast_resnet.{CLASS_NAME}",
}

SOURCE = '''\
"""A ResNet for small pictures: transformers' own, but for the stem, one convolution of 3 x 3 and stride 1."""

from torch import nn
from transformers import ResNetConfig, ResNetForImageClassification
from transformers.models.resnet.modeling_resnet import ResNetConvLayer


class OutlastResNetConfig(ResNetConfig):
    model_type = "outlast_resnet"


class OutlastResNetForImageClassification(ResNetForImageClassification):
    config_class = OutlastResNetConfig

    def __init__(self, config):
        super().__init__(config)
        stem = self.resnet.embedder
        stem.embedder = ResNetConvLayer(config.num_channels, config.embedding_size, kernel_size=3, stride=1)
        stem.pooler = nn.Identity()
        self.post_init()
'''
