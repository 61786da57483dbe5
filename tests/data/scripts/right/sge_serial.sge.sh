#!/bin/bash -l
#$ -N prep
#$ -cwd
#$ -l h_rt=1:00:00
#$ -l h_vmem=4G
module load python
python prepare.py
