#!/bin/bash

# Parameters
#SBATCH --account=lab
#SBATCH --array=0-1%2
#SBATCH --comment='a "b" #c'
#SBATCH --constraint='intel&avx512'
#SBATCH --cpus-per-task=1
#SBATCH --error=/shared/results/%A_%a_0_log.err
#SBATCH --job-name=tiny
#SBATCH --mail-type=END,FAIL
#SBATCH --mail-user=me@lab.org
#SBATCH --mem-per-cpu=1024MB
#SBATCH --no-requeue
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --open-mode=append
#SBATCH --output=/shared/results/%A_%a_0_log.out
#SBATCH --partition=short,long
#SBATCH --qos=high
#SBATCH --reservation='the course'
#SBATCH --signal=USR2@20
#SBATCH --time=2
#SBATCH --wckey=submitit

# setup
if [ ! -O /shared/results ] || [ -L /shared/results ]; then echo 'hpcncf: /shared/results: is not this user'"'"'s own folder any more: not started' >&2; exit 1; fi
# what the submitting shell knew of other jobs
unset RANK LOCAL_RANK GROUP_RANK ROLE_RANK WORLD_SIZE LOCAL_WORLD_SIZE ROLE_WORLD_SIZE GROUP_WORLD_SIZE MASTER_ADDR MASTER_PORT HPCNCF_ATTEMPT HPCNCF_LAUNCHED_BY HPCNCF_NODE_CPUS
unset SLURM_EXPORT_ENV SLURM_EXACT SLURM_OVERLAP SLURM_WHOLE SLURM_TRES_PER_TASK SLURM_GPU_BIND SLURM_MEM_BIND SLURM_DISTRIBUTION SLURM_HINT SLURM_THREADS_PER_CORE SLURM_CPUS_PER_GPU SLURM_GPUS SLURM_GPUS_PER_TASK SLURM_NTASKS_PER_GPU SLURM_NTASKS_PER_CORE SLURM_NTASKS_PER_SOCKET SLURM_MEM_PER_NODE SLURM_MEM_PER_CPU SLURM_MEM_PER_GPU
unset "${!SRUN_@}" "${!SUBMITIT_@}" "${!TORCHELASTIC_@}" "${!SLURM_STEP_@}" "${!SLURM_CPU_BIND@}"
type module >/dev/null 2>&1 || . /etc/profile
module purge
module load gcc/12.2 || exit
module load python || exit
export OMP_NUM_THREADS=1
export MKL_NUM_THREADS=1
export GLOO_SOCKET_IFNAME=ib0
export NCCL_SOCKET_IFNAME=ib0
export GREETING='it'"'"'s $(two) words'
ulimit -n 4096
export HPCNCF_LAUNCHED_BY=slurm

# command
export SUBMITIT_EXECUTOR=slurm
srun --unbuffered --output /shared/results/%A_%a_%t_log.out --error /shared/results/%A_%a_%t_log.err --cpus-per-task=1 --kill-on-bad-exit=1 --cpu-bind=cores sh -c 'trap "" USR2; exec "$@"' sh apptainer exec --nv '/images/my image.sif' "$HOME"/'env s/hpcncf'/bin/python -P -u -m submitit.core._submit /shared/results


# teardown
status=$?
rm -rf "$TMPDIR/cache"
exit $status