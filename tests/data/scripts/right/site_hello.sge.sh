#!/bin/bash --login
#$ -cwd
#$ -N hello_world
#$ -j y
#$ -o hello_world.out
#$ -l h_rt=120000
#$ -l mem_free=4G
#$ -m e
echo "Hello world!"
