#!/bin/bash

# Parameters
#SBATCH --account=lab
#SBATCH --array=0-1%2
#SBATCH --cpus-per-task=3
#SBATCH --error=LOGS/%A_%a_0_log.err
#SBATCH --exclusive
#SBATCH --job-name=tiny
#SBATCH --mem=1GB
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --open-mode=append
#SBATCH --output=LOGS/%A_%a_0_log.out
#SBATCH --partition=short
#SBATCH --signal=USR2@20
#SBATCH --time=2
#SBATCH --wckey=submitit

# setup
if [ ! -O LOGS ] || [ -L LOGS ]; then echo 'hpcncf: LOGS: is not this user'"'"'s own folder any more: not started' >&2; exit 1; fi
# what the submitting shell knew of other jobs
unset RANK LOCAL_RANK GROUP_RANK ROLE_RANK WORLD_SIZE LOCAL_WORLD_SIZE ROLE_WORLD_SIZE GROUP_WORLD_SIZE MASTER_ADDR MASTER_PORT HPCNCF_ATTEMPT HPCNCF_LAUNCHED_BY HPCNCF_NODE_CPUS
unset SLURM_EXPORT_ENV SLURM_EXACT SLURM_OVERLAP SLURM_WHOLE SLURM_TRES_PER_TASK SLURM_GPU_BIND SLURM_MEM_BIND SLURM_DISTRIBUTION SLURM_HINT SLURM_THREADS_PER_CORE SLURM_CPUS_PER_GPU SLURM_GPUS SLURM_GPUS_PER_TASK SLURM_NTASKS_PER_GPU SLURM_NTASKS_PER_CORE SLURM_NTASKS_PER_SOCKET SLURM_MEM_PER_NODE SLURM_MEM_PER_CPU SLURM_MEM_PER_GPU
unset "${!SRUN_@}" "${!SUBMITIT_@}" "${!TORCHELASTIC_@}" "${!SLURM_STEP_@}" "${!SLURM_CPU_BIND@}"
export OMP_NUM_THREADS=3
export MKL_NUM_THREADS=3
module load python
export HPCNCF_LAUNCHED_BY=slurm

# command
export SUBMITIT_EXECUTOR=slurm
srun --unbuffered --output LOGS/%A_%a_%t_log.out --error LOGS/%A_%a_%t_log.err --cpus-per-task=3 --kill-on-bad-exit=1 sh -c 'trap "" USR2; exec "$@"' sh PYTHON -P -u -m submitit.core._submit LOGS
