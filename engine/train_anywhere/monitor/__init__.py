"""What is seen of a run while it trains, from beside the ranks.

1. The batch script (`slurm/templates/_monitor.sh.j2`) starts one side process on each node; on this machine `launch/processes.py` does.
2. `node` is that process: at low priority, it calls each of its parts every few seconds, and ends with the script, or when its parent
   is gone. Nothing waits for it and nothing reads its exit code: killed at any moment, the training goes on as before.
3. `sampler` writes what the node does: `gpus` asks NVML or nvidia-smi, `machine` asks psutil and /proc; `curves` adds it to TensorBoard.
4. `serve` is a TensorBoard server on the first node, and the line that tunnels to it.
5. `watch` looks at the ranks: each writes a `heartbeat`, which `ranks` reads on its node; on the first node `judge` asks `meeting` who
   has not come, `stragglers` who is slow and `hangs` who hangs. Then `stacks` are written; with `hang=requeue`, `ending` ends the run.
6. `live`, within a rank: a thread of rank 0 keeps RUN/monitor/live.json, how far the training is.

Everything is written below `RUN/monitor`. A disk that refuses is done without, and tried again at the next sample.
"""
