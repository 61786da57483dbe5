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
#SBATCH --signal=USR2@30
#SBATCH --time=2
#SBATCH --wckey=submitit

# setup
module load python
export OMP_NUM_THREADS=3
export MKL_NUM_THREADS=3
export HPCNCF_LAUNCHED_BY=slurm

# command
export SUBMITIT_EXECUTOR=slurm
srun --unbuffered --output LOGS/%A_%a_%t_log.out --error LOGS/%A_%a_%t_log.err --cpus-per-task=3 --kill-on-bad-exit=1 PYTHON -u -m submitit.core._submit LOGS
