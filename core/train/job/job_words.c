/* Names that other programs use for the keys and values of a job: PyTorch, Keras, scikit-learn,
 * Hugging Face, Lightning, DeepSpeed, Horovod. A row has one key or value, with all the names that
 * others use for it; if a name stands in two rows that fit, the first row is taken. */
#include "core/train/job/job.h"

#define RANKS   "mpirun -np N or --ranks N says how many ranks there are"
#define READING "samples are read beside the training, without a key"
#define RESUME  "--resume on the command line says where a run resumes from"
#define FOLLOWS "this follows from the data and the layers before"
#define BESIDE  "an activation is a layer after another, or model.activation of mlp and cnn"
#define LASTS   "a schedule lasts as long as train.epochs or train.steps say"
#define METRICS "all that fit are reported without a key; `dptrain layers metrics` lists them"
#define GROUPED "conv with as many groups as there are channels is depthwise"
#define SAMPLES "/weights beside the labels says how much each sample counts"
#define EPOCHS  "an epoch is each sample once; train.steps says how many steps the run has"
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
    {"every", "stepsize decaysteps"},
    {"optimizer.lr", "lr learningrate learningrateinit initiallearningrate baselr eta eta0"},
    {"decay", "momentum"}, /* of a batch norm, as in Keras */
    {"optimizer.momentum", "momentum"},
    {"optimizer.nesterov", "nesterov"},
    {"optimizer.weight_decay", "weightdecay wd decoupledweightdecay l2 l2penalty"},
    {"optimizer.beta1", "beta1 b1 adambeta1"},
    {"optimizer.beta2", "beta2 b2 adambeta2"},
    {"optimizer.beta1 and optimizer.beta2 say it", "betas"},
    {"optimizer.eps", "epsilon eps adamepsilon"},
    {"alpha", "rho"},
    {"optimizer", "optim optimiser solver"},
    /* schedule */
    {"schedule", "lrscheduler lrschedulertype lrschedule learningrateschedule "
                 "learningratescheduler scheduler sched lrpolicy"},
    {"schedule.warmup",
     "warmup warmupsteps numwarmupsteps warmupepochs warmupratio warmupfraction"},
    {"schedule.gamma", "gamma lrdecay decayrate"},
    {"schedule.scale_lr", "scalelr"},
    {"schedule.min_lr", "minlr"},
    {"schedule.final", "minlr etamin lrmin endlearningrate"},
    {"schedule.patience", "patience"},
    {"schedule.min_delta", "threshold"},
    {"plateau", "reducelronplateau reduceonplateau"},
    {LASTS, "tmax totaliters decaysteps"},
    /* train */
    {"train.epochs", "epochs epoch nepochs numepochs maxepochs numtrainepochs totalepochs "
                     "maxiter train:"},
    {"train.steps", "steps maxsteps numsteps totalsteps trainsteps numtrainsteps iterations "
                    "maxiters niter niters"},
    {EPOCHS, "stepsperepoch limittrainbatches"},
    {"train.ema", "ema emadecay modelema averagedmodel modelemadecay"},
    {"train.max_time", "maxtime"},
    {"train.early_stop", "earlystop earlystopping earlystoppingcallback"},
    {"train.early_stop.patience", "earlystoppingpatience patience niternochange"},
    {"train.early_stop.min_delta", "earlystoppingthreshold mindelta"},
    {"train.clip_norm", "clip clipnorm gradclip clipgradnorm globalclipnorm gradientclipping "
                        "gradientclipval maxgradnorm maxnorm clipgradientsbynorm"},
    /* data */
    {"data", "dataset datasets"},
    {"data.train", "traindata traindir data.path data.dir data:"},
    {"data.test", "testdata"},
    {"data.valid", "val valdata valsplit valfraction valratio validation validationdata "
                   "validationsplit validationfraction data.dev"},
    {"data.shuffle", "shuffle"},
    {"data.normalize", "normalize normalise"},
    {"data.class_weights", "classweight classweights posweight posweights"},
    {SAMPLES, "sampleweight sampleweights"},
    {"data.normalize.mean", "mean"},
    {"data.normalize.std", "std"},
    {"data.resize", "resize imagesize imgsize"},
    {"data.crop", "centercrop centrecrop"},
    {"data.augment", "augment augmentation transforms"},
    {"data.augment.flip", "horizontalflip randomhorizontalflip"},
    {"data.augment.crop_padding", "randomcrop"},
    {"data.augment.crop_area", "randomresizedcrop"},
    {"data.augment.vertical_flip", "verticalflip randomverticalflip"},
    {"data.augment.rotate", "rotation randomrotation degrees"},
    {"data.augment.shift", "translate translation"},
    {"data.augment.erase", "randomerasing erasing cutout"},
    {"data.augment.noise", "gaussiannoise"},
    {"data.augment.mixup", "mixupalpha"},
    {"data.augment.cutmix", "cutmixalpha"},
    {"data.augment.brightness, contrast, saturation and hue say it", "colorjitter"},
    {READING "; " RANKS, "workers numworkers"},
    {READING, "dataloadernumworkers prefetchfactor"},
    {"this is done where it helps, without a key", "pinmemory"},
    /* device and ranks */
    {"device.kind", "device gpu cuda usecuda accelerator backend device:"},
    {"device.threads", "threads numthreads"},
    {"device.precision", "precision dtype amp fp16 bf16 tf32 mixedprecision computedtype allowtf32 "
                         "usefp16 usebf16"},
    {RANKS,
     "ranks n np gpus devices numgpus numnodes nprocpernode numprocesses worldsize localrank"},
    /* model */
    {"model.layers", "layers"},
    {"outputs", "units features outfeatures outputdim outdim numclasses classes nclasses"},
    {"hidden",
     "hiddensize hiddensizes hiddenlayers hiddenlayersizes hiddendim hiddendims hiddenunits "
     "hiddenfeatures nhidden numhidden units"},
    {"channels", "features outchannels filters nfilters numfilters"},
    {"model.outputs", "numclasses"},
    {"model.hidden", "hidden hiddensizes hiddenlayers hiddenlayersizes hiddenunits"},
    {"kernel", "kernelsize filtersize"},
    {"size", "kernelsize poolsize"},
    {"pool", "poolsize"},
    {"stride", "strides"},
    {"dilation", "dilationrate"},
    {"groups", "numgroups"},
    {"slope", "negativeslope"},
    {"scale", "scalefactor"},
    {"delta", "beta"},
    {"bias", "usebias"},
    {"dropout", "dropoutrate dropout1d dropout2d spatialdropout2d"},
    {"model.dropout", "dropout"},
    {"rate", "dropoutrate p prob"},
    {"activation", "activationfunction act nonlinearity"},
    {BESIDE, "activation activationfunction act nonlinearity"},
    {"init", "kernelinitializer initializer weightinit"},
    {FOLLOWS, "infeatures inchannels inputshape inputdim inputsize inputs numfeatures "
              "normalizedshape"},
    {"model", "arch network net"},
    {"loss", "lossfn lossfunction criterion objective"},
    {METRICS, "metrics metric scoring"},
    {"loss.label_smoothing", "labelsmoothing"},
    {"init.from", "pretrained weights initfrom init:"},
    /* what is written, and when */
    {"seed", "randomseed randomstate manualseed globalseed rngseed"},
    {"output", "outputdir outdir savedir logdir rundir workdir checkpointdir"},
    {"name", "runname experiment jobname"},
    {"checkpoint", "checkpointing"},
    {"checkpoint.every", "saveevery savesteps savestrategy savefreq checkpointevery "
                         "checkpointinterval checkpoint:"},
    {"checkpoint.monitor", "monitor metricforbestmodel loadbestmodelatend savebestonly"},
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
    {"sgd", "momentum nesterov gd gradientdescent torch.optim.sgd"},
    {"adam", "torch.optim.adam fusedadam"},
    {"rmsprop", "torch.optim.rmsprop"},
    {"adagrad", "torch.optim.adagrad"},
    {"nadam", "torch.optim.nadam"},
    {"lamb", "fusedlamb nvlamb"},
    {"lars", "larc fusedlars"},
    {"adamw", "torch.optim.adamw adamwtorch adamwtorchfused"},
    {"cross_entropy",
     "crossentropyloss crossentropywithlogits labelsmoothingcrossentropy softtargetcrossentropy "
     "categoricalcrossentropy sparsecategoricalcrossentropy "
     "softmaxcrossentropy softmaxcrossentropywithintegerlabels softmax nll nllloss logloss ce"},
    {"mse", "mseloss meansquarederror squarederror l2 l2loss quadratic rmse"},
    {"focal", "focalloss categoricalfocalcrossentropy focalcrossentropy"},
    {"l1", "mae l1loss meanabsoluteerror absoluteerror meanabserror"},
    {"huber", "huberloss smoothl1 smoothl1loss"},
    {"poisson", "poissonnllloss poissonnll poissonloss countpoisson"},
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
    {"dense", "linear fc fullyconnected lazylinear affine innerproduct gemm"},
    {"conv", "conv2d lazyconv2d convolution convolution2d"},
    {GROUPED, "depthwiseconv2d depthwiseconv depthwise separableconv2d"},
    {"conv1d", "convolution1d"},
    {"maxpool", "maxpool2d maxpooling maxpooling2d"},
    {"avgpool", "avgpool2d averagepool averagepool2d averagepooling averagepooling2d meanpool"},
    {"batchnorm", "batchnorm1d batchnorm2d batchnormalization batchnormalisation bn bn2d norm"},
    {"layernorm", "layernormalization layernormalisation ln"},
    {"groupnorm", "groupnormalization gn instancenorm instancenorm2d"},
    {"batchnorm: {statistics: batch}", "syncbatchnorm syncbn"},
    {"global_avgpool", "globalaveragepool globalaveragepooling2d globalavgpool2d gap"},
    {"adaptive_avgpool", "adaptiveavgpool2d adaptiveaveragepool"},
    {"upsample", "upsampling2d upsamplingnearest2d upsamplingbilinear2d interpolate resize"},
    {"concat", "concatenate cat"},
    {"multiply", "mul"},
    {"add", "sum plus"},
    {"residual", "resblock residualblock basicblock skipconnection"},
    {"relu", "rectifier rectified rectifiedlinear"},
    {"silu", "swish"},
    {"leaky_relu", "lrelu leakyrectifier"},
    {"hardswish", "hswish"},
    {"loss: cross_entropy has the softmax in it; leave this one out", "logsoftmax softmax"},
    {0},
};
