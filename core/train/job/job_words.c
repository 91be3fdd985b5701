/* What other programs call the things of a job: PyTorch, Keras, Hugging Face, Lightning, DeepSpeed,
 * Horovod. A row names a thing once, with all words that others use for it; where a word stands in
 * two rows that fit, the first one is taken. */
#include "core/train/job/job.h"

#define RANKS   "mpirun -np N or --ranks N says how many ranks there are"
#define READING "samples are read beside the training, without a key"
#define RESUME  "--resume on the command line says where a run goes on from"
#define FOLLOWS "this follows from the data and the layers before"
#define MICRO   "a step's batch.global samples are cut into micro-batches of batch.micro"

const struct dpt_synonym dpt_job_synonyms[] = {
    /* batch */
    {"batch.global", "batch.size batchsize bs globalbatch globalbatchsize totalbatchsize "
                     "trainbatchsize batch:"},
    {"batch.per_rank",
     "localbatchsize perdevicetrainbatchsize perdevicebatchsize pergpubatchsize "
     "pergputrainbatchsize batchsizepergpu batch.perdevice batch.pergpu batch.local"},
    {"batch.micro", "microbatch microbatchsize trainmicrobatchsizepergpu"},
    {MICRO, "gradientaccumulationsteps gradientaccumulation accumulategradbatches "
            "accumulationsteps accumulation gradaccum backwardpassesperstep"},
    {"data.drop_last", "droplast"},
    /* optimizer */
    {"optimizer.lr", "lr learningrate initiallearningrate baselr stepsize"},
    {"optimizer.momentum", "momentum"},
    {"optimizer.nesterov", "nesterov"},
    {"optimizer.weight_decay", "weightdecay wd decoupledweightdecay l2"},
    {"optimizer.beta1", "beta1 b1 adambeta1"},
    {"optimizer.beta2", "beta2 b2 adambeta2"},
    {"optimizer.beta1 and optimizer.beta2 say it", "betas"},
    {"optimizer.eps", "epsilon eps adamepsilon"},
    {"optimizer", "optim optimiser"},
    /* schedule */
    {"schedule", "lrscheduler lrschedulertype lrschedule scheduler"},
    {"schedule.warmup", "warmup warmupsteps numwarmupsteps"},
    {"schedule.gamma", "gamma lrdecay decayrate"},
    {"schedule.scale_lr", "scalelr"},
    {"schedule.final", "minlr etamin"},
    /* train */
    {"train.epochs", "epochs epoch nepochs numepochs maxepochs numtrainepochs train:"},
    {"train.steps", "steps maxsteps numsteps totalsteps trainsteps numtrainsteps iterations "
                    "maxiters"},
    {"train.ema", "ema emadecay modelema averagedmodel modelemadecay"},
    {"train.max_time", "maxtime"},
    {"train.clip_norm", "clip clipnorm gradclip clipgradnorm globalclipnorm gradientclipping "
                        "gradientclipval maxgradnorm"},
    /* data */
    {"data", "dataset datasets"},
    {"data.train", "traindata traindir data.path data.dir data:"},
    {"data.test", "testdata"},
    {"data.valid", "val valdata valsplit validation validationdata validationsplit data.dev"},
    {"data.shuffle", "shuffle"},
    {"data.normalize", "normalize normalise"},
    {"data.normalize.mean", "mean"},
    {"data.normalize.std", "std"},
    {"data.augment", "augment augmentation transforms"},
    {"data.augment.flip", "horizontalflip randomhorizontalflip"},
    {"data.augment.crop_padding", "randomcrop"},
    {READING "; " RANKS, "workers numworkers"},
    {READING, "dataloadernumworkers prefetchfactor"},
    {"this is done where it helps, without a key", "pinmemory"},
    /* device and ranks */
    {"device.kind", "gpu cuda usecuda accelerator backend device:"},
    {"device.threads", "threads numthreads"},
    {"device.precision", "precision dtype amp fp16 bf16 tf32 mixedprecision computedtype"},
    {RANKS, "ranks np gpus devices numgpus numnodes nprocpernode numprocesses worldsize localrank"},
    /* model */
    {"model.layers", "layers"},
    {"outputs", "units features outfeatures outputdim outdim numclasses classes nclasses"},
    {"hidden", "hiddensize hiddensizes hiddenlayers hiddendim hiddenunits units"},
    {"channels", "features outchannels filters"},
    {"model.outputs", "numclasses"},
    {"kernel", "kernelsize filtersize"},
    {"size", "kernelsize poolsize"},
    {"pool", "poolsize"},
    {"stride", "strides"},
    {"bias", "usebias"},
    {"dropout", "dropoutrate"},
    {"model.dropout", "dropout"},
    {"rate", "dropoutrate p prob"},
    {"activation", "activationfunction nonlinearity"},
    {"init", "kernelinitializer initializer weightinit"},
    {FOLLOWS, "infeatures inchannels inputshape inputdim inputs"},
    {"model", "arch network net"},
    {"loss", "lossfn lossfunction criterion objective"},
    {"loss.label_smoothing", "labelsmoothing"},
    {"init.from", "pretrained weights initfrom init:"},
    /* what is written, and when */
    {"seed", "randomseed manualseed rngseed"},
    {"output", "outputdir outdir savedir logdir rundir workdir checkpointdir"},
    {"name", "runname experiment jobname"},
    {"checkpoint", "checkpointing"},
    {"checkpoint.every", "saveevery savesteps savestrategy savefreq checkpointevery "
                         "checkpointinterval checkpoint:"},
    {"checkpoint.keep", "savetotallimit maxtokeep savetopk"},
    {"eval", "evaluation"},
    {"eval.every", "evalevery evalsteps evalstrategy evalfreq evaluationstrategy valcheckinterval "
                   "validationfreq eval:"},
    {"log", "logging"},
    {"log.every", "logevery loginterval logsteps logeverynsteps loggingsteps printfreq log:"},
    {"log.tensorboard", "tensorboard"},
    {"comm.reduction", "reduction deterministic reproducible"},
    {"comm.timeout", "timeout"},
    {"parallel.pipeline",
     "pipeline pipelineparallel pipelineparallelsize pipelinemodelparallelsize pp ppsize stages"},
    {"parallel.tensor", "tensor tensorparallel tensorparallelsize tensormodelparallelsize "
                        "modelparallel tp tpsize"},
    {"parallel.data", "dataparallel dataparallelsize dp dpsize"},
    {"parallel.shard", "shard zerooptimization zerostage zeroredundancyoptimizer"},
    {RESUME, "resume resumefrom resumefromcheckpoint ckptpath"},
    /* values */
    {"cuda", "gpu gpus nvidia cuda:0"},
    {"full", "true"},
    {"memory", "true"},
    {"on", "true"},
    {"none", "false"},
    {"off", "false"},
    {"fp16", "16 half float16 f16 16mixed mixed mixedfloat16 amp"},
    {"bf16", "bfloat16 bf16mixed mixedbfloat16"},
    {"fp32", "32 float float32 f32 single"},
    {"tf32", "tensorfloat32 tensorfloat"},
    {"sgd", "momentum nesterov torch.optim.sgd"},
    {"adam", "torch.optim.adam fusedadam"},
    {"rmsprop", "torch.optim.rmsprop"},
    {"adagrad", "torch.optim.adagrad"},
    {"nadam", "torch.optim.nadam"},
    {"lamb", "fusedlamb nvlamb"},
    {"lars", "larc fusedlars"},
    {"adamw", "torch.optim.adamw adamwtorch adamwtorchfused"},
    {"cross_entropy",
     "crossentropyloss categoricalcrossentropy sparsecategoricalcrossentropy "
     "softmaxcrossentropy softmaxcrossentropywithintegerlabels softmax nll nllloss logloss ce"},
    {"mse", "mseloss meansquarederror squarederror l2 l2loss"},
    {"focal", "focalloss categoricalfocalcrossentropy focalcrossentropy"},
    {"l1", "mae l1loss meanabsoluteerror absoluteerror meanabserror"},
    {"huber", "huberloss smoothl1 smoothl1loss"},
    {"binary_cross_entropy",
     "bcewithlogitsloss bcewithlogits bceloss bce binarycrossentropy binarycrossentropyloss "
     "binarycrossentropywithlogits sigmoidcrossentropy sigmoidbinarycrossentropy "
     "multilabelsoftmarginloss"},
    {"cosine", "cosineannealing cosineannealinglr cosinedecay cosinewithwarmup warmupcosine"},
    {"step", "steplr multisteplr stepdecay"},
    {"exponential", "exponentiallr exponentialdecay"},
    {"polynomial", "poly polynomiallr polynomialdecay polynomialdecaylr"},
    {"linear", "lineardecay linearlr linearwithwarmup linearregression logisticregression "
               "logistic"},
    {"onecycle", "onecyclelr 1cycle"},
    {"constant", "constantlr constantwithwarmup none"},
    {"mlp", "perceptron dnn"},
    {"cnn", "convnet"},
    {"sigmoid", "logistic"},
    {"allreduce", "sync"},
    {"reproducible", "deterministic"},
    {"xavier", "glorot glorotuniform xavieruniform"},
    {"he", "henormal kaiming kaimingnormal"},
    {"lecun", "lecunnormal"},
    {"pytorch", "torch kaiminguniform"},
    {"zero", "zeros"},
    /* layers */
    {"dense", "linear fc fullyconnected"},
    {"conv", "conv2d convolution"},
    {"maxpool", "maxpool2d maxpooling2d"},
    {"avgpool", "avgpool2d averagepool averagepooling2d"},
    {"batchnorm", "batchnorm1d batchnorm2d batchnormalization bn norm"},
    {"batchnorm: {statistics: batch}", "syncbatchnorm syncbn"},
    {"global_avgpool", "adaptiveavgpool2d globalaveragepool globalaveragepooling2d gap"},
    {"loss: cross_entropy has the softmax in it; leave this one out", "logsoftmax softmax"},
    {0},
};
