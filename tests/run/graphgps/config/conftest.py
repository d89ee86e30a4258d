"""A config in the spelling of GraphGPS, written for these tests."""

import pytest

MOLECULES = """\
metric_best: mae
metric_agg: argmin
wandb: {use: True, project: some}
dataset:
  {format: PyG-ZINC, name: subset, task: graph, task_type: regression, transductive: False,
   node_encoder: True, node_encoder_name: TypeDictNode+LapPE+RWSE, node_encoder_num_types: 28, node_encoder_bn: False,
   edge_encoder: True, edge_encoder_name: TypeDictEdge, edge_encoder_num_types: 4, edge_encoder_bn: False}
posenc_LapPE:
  {enable: True, eigen: {laplacian_norm: none, eigvec_norm: L2, max_freqs: 8}, model: DeepSet, dim_pe: 8, layers: 2}
posenc_RWSE:
  {enable: True, kernel: {times_func: "range(1,17)"}, model: Linear, dim_pe: 16, raw_norm_type: BatchNorm}
train: {mode: custom, batch_size: 32, eval_period: 1, ckpt_period: 100}
model: {type: GPSModel, loss_fun: l1, edge_decoding: dot, graph_pooling: add}
gt:
  {layer_type: CustomGatedGCN+Transformer, layers: 3, n_heads: 4, dim_hidden: 64, dropout: 0, attn_dropout: 0.5,
   layer_norm: False, batch_norm: True}
gnn:
  {head: san_graph, layers_pre_mp: 0, layers_post_mp: 3, dim_inner: 64, batchnorm: True, act: relu, agg: mean,
   normalize_adj: False}
optim:
  {clip_grad_norm: True, optimizer: adamW, weight_decay: 1e-5, base_lr: 0.001, max_epoch: 20,
   scheduler: cosine_with_warmup, num_warmup_epochs: 5}
"""


@pytest.fixture
def molecules(tmp_path):
    path = tmp_path / "molecules.yaml"
    path.write_text(MOLECULES)
    return path
