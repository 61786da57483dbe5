#!/bin/bash -l
#$ -l h_rt=2:0:0
#$ -l mem=10G
#$ -l tmpfs=20G
#$ -N reads
#$ -pe smp 8
#$ -wd /home/uccaxyz/Scratch/mito

module purge
module load python/miniconda3/24.3.0-0
source $UCL_CONDA_PATH/etc/profile.d/conda.sh
conda activate pbsim3
python simulate.py --threads $NSLOTS
