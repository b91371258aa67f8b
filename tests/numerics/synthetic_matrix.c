#include "tests/numerics/synthetic_matrix.h"

#include <math.h>
#include <string.h>

const char *const matrix_optimizers[MATRIX_OPTIMIZERS] = {"adamw", "adam",    "sgd", "nesterov",
                                                          "lion",  "adagrad", "two"};
const char *const matrix_precisions[MATRIX_PRECISIONS] = {
    "f32", "bf16", "f16", "wires", "bf16-bare", "f16-bare", "moments", "all"};
const char *const matrix_policies[MATRIX_POLICIES] = {"clipped", "unclipped", "skips", "passes"};

int matrix_find(const char *const *names, int count, const char *name)
{
    for (int i = 0; i < count; i++)
        if (strcmp(names[i], name) == 0)
            return i;
    return -1;
}

void matrix_set_optimizer(struct synthetic *model, int optimizer)
{
    const bool two = optimizer == MATRIX_OPTIMIZERS - 1; // with one and with two moments
    const enum synthetic_optimizer one = (enum synthetic_optimizer)optimizer;
    model->optimizer[0] = two ? SYNTHETIC_LION : one;
    model->optimizer[1] = two ? SYNTHETIC_ADAM : one;
}

void matrix_set_precision(struct synthetic *model, int precision)
{
    static const struct synthetic precisions[MATRIX_PRECISIONS] = {
        {.dtype = ZERO_F32},
        {.dtype = ZERO_BF16},
        {.dtype = ZERO_F16},
        {.grad_dtype = ZERO_F32, .comm_dtype = ZERO_BF16},
        {.dtype = ZERO_BF16, .no_masters = true},
        {.dtype = ZERO_F16, .no_masters = true},
        {.dtype = ZERO_F32, .narrow_moments = true},
        {.dtype = ZERO_F16,
         .grad_dtype = ZERO_BF16,
         .comm_dtype = ZERO_F16,
         .no_masters = true,
         .narrow_moments = true},
    };
    const struct synthetic *chosen = &precisions[precision];
    model->dtype = chosen->dtype;
    model->grad_dtype = chosen->grad_dtype;
    model->comm_dtype = chosen->comm_dtype;
    model->no_masters = chosen->no_masters;
    model->narrow_moments = chosen->narrow_moments;
}

void matrix_set_policy(struct synthetic *model, int policy)
{
    const uint64_t last = (uint64_t)model->micro_batches - 1;
    // Not finite: the first step, and two gradients of the fifth, which synthetic_passed() is, too.
    const struct synthetic_fault faults[SYNTHETIC_FAULTS] = {
        {policy == MATRIX_SKIPS, 0, last, 5, 0, 1022, NAN},
        {policy >= MATRIX_SKIPS, 4, 0, 0, 0, 17, -INFINITY},
        {policy >= MATRIX_SKIPS, 4, last, 2, 2, 1024, INFINITY},
    };
    model->unclipped = policy == MATRIX_UNCLIPPED || policy == MATRIX_PASSES;
    model->skips = policy == MATRIX_SKIPS;
    model->passes = policy == MATRIX_PASSES;
    memcpy(model->faults, faults, sizeof faults);
}

struct synthetic matrix_model(int optimizer, int precision, int policy)
{
    struct synthetic model = {.micro_batches = 5};
    matrix_set_optimizer(&model, optimizer);
    matrix_set_precision(&model, precision);
    matrix_set_policy(&model, policy);
    model.scaled = model.dtype == ZERO_F16;
    return model;
}

static const char *const golden[MATRIX_OPTIMIZERS][MATRIX_PRECISIONS][MATRIX_POLICIES] = {
    {
        // adamw
        {"110724f61d431737c52bacca90777824", "2ec6cfb5625f2491796b24a9632525de", // f32
         "fe6aee9f5169936ffb70e0187db19a56", "7998b6fe646b99e9745620d3c1e4edd4"},
        {"66b5f4256503408c0e94be744a6886dd", "2ed93c83824ba235be16f8b23cfdd4a0", // bf16
         "c5651c33a7d6049a7548f7056e9a3179", "17fccafbb06bac6e57a0918a60173caf"},
        {"2903af3c037e180bf8b680e90b9debe6", "62620230761a5ac7589cc0da0c50bdc2", // f16
         "5167bb02c8ce680f12fb053738e2f808", "bb7bc51c4dba2a2e40e8e1dc398157d9"},
        {"2c5b647f161f32518f9ea34910d5137d", "037f8e21f250cc787315cb1b565f99dd", // wires
         "b09d2fdf099ad9a5ee87ecd86523c424", "6f3a163415048b1b4561c0c3becf5291"},
        {"bae91915b14bf1ce546e3712e65d2f13", "62a569f52ccfa1f774ec5848308d201c", // bf16-bare
         "c6a1a28acd5db21189d9b9268c97d0ec", "72ee7bb1e249968e79e9c6145fba91b6"},
        {"19ba3fcbe5bab5e69939014ead1cb456", "fd20e2d2473ae968a42d92e902e9456e", // f16-bare
         "d7e53f1254277749bf3744a8ce54330f", "c8d783a40be4d0f2bd9ca30dde66d0a3"},
        {"e0055e1908083a485754f55709954039", "e4a785ab0b038787d4b02385f77b90f4", // moments
         "59099cd7e2f75787925fe2a4a04e4906", "37c77636a2873d00293997b4029e3a45"},
        {"b4d5e1ed795bbf68d386f9ad5a84010f", "c6c89614e9999109fa9f078526502b0d", // all
         "da9972c3c2ac01533749ca37d6758656", "f598a53ec44e185b2a8af6eed929ce11"},
    },
    {
        // adam
        {"0495e7ca8087381db404cfd75c0b258a", "f7e5dbf3e72e2fb19f9106f3438a0a50", // f32
         "9f851cf40cae46ba4524e4fd661e0dcd", "4ba91085b346a6a3f07ed02511147ccf"},
        {"5b826a6ae24d1e4abaafcf122cf61d49", "07d5fb7d9a43f2a13acd30e3ba99cf78", // bf16
         "918d0ef30cdc04c06e2e2d9ed3155db2", "559154f7ad7603fa70effa7a1aca7a84"},
        {"850239fd3b3e0d068641cb41491e4a54", "689abee34541ff80a641fd91a2c78b52", // f16
         "61993dd6562e32a802308596aab6ccf9", "34b65d5674915d0c044f8c2552511604"},
        {"304da7ed415832eb4f25aabca74773c2", "cfdd64c12fb0eb9246606bdae72f2a2f", // wires
         "47812f5a20456bd33ab7dd3eca5ba621", "038fbd84e837889931390013625fd0f6"},
        {"0d18fbccac246e2d3598e0c347f27e7d", "2bfb0d82f0bf1117d3bfac8975ab3558", // bf16-bare
         "eb877c362c6975e0ac4474eff43af695", "aaed3d447987db65472d331d6073d156"},
        {"4e6f395484ba60e50da4964f5b9b90a5", "d1b4e427f0001ae9e356aac8c0365f02", // f16-bare
         "77f0bd8961cbd53426f016a035f77f42", "53e61968608b6d86310015f7a3b8ee1c"},
        {"fb2eae7ec8b11bbf6771ee1640479526", "b515f3ddc4c051a2772b2bb842423cc6", // moments
         "d5d7a9274e968329655aa50acbb22959", "4ff77fbd57e0c8b30dcbec4abffb4adf"},
        {"554a52ecbe0c9239d70b3605a7842b10", "d6c7377d7b9849e2350ba76cd25296aa", // all
         "86434529ba56ebfe2d93b20e978d8c8e", "a84a1176b5cb89d0ce809ceceb9834e3"},
    },
    {
        // sgd
        {"1d973afe6610440bce6a55d06b761ae0", "4ef4624106fb13e05e85ac263d03f8a5", // f32
         "1c7d0521dcd8044947a4ac8fbef47456", "f91ac7824dac2a30db97879407ea5053"},
        {"b6c6d89a64b645d96ca6872a0dba6e2f", "c8d29805fe7d9679a276efffc2d9a190", // bf16
         "fda83c579fa026185f2e5f1c43a1b3a6", "185cf99305e4f6e875d2177130fa44e4"},
        {"7ce024e2b82e9fcd1e087fe4ef717e53", "a944fb8e07a0c239f985fd19305e5f8e", // f16
         "6d8713f1aa57189f2da31b9964d98193", "2367267310fae8ac2bbe11eda37b0352"},
        {"eb03f75df0594f962d40d8e054556a35", "e47e8f800264d601b44de67ce7b60a9c", // wires
         "3c90bddc3d82ebe08ef7d741aef07335", "7caae528d3a0ce3740cc24fa56838800"},
        {"75c1476ca907313c49b0bf6aa27a9460", "d7b6b106e3308839c49689c57ec1f88f", // bf16-bare
         "c60b3ca4086a85ad8271c80d8508e00c", "a825446df1e8164f7e13a32a36bcacdb"},
        {"e7a3f261c50db4742413b19a45866a3d", "800e673dd487150790b8c22473a998b4", // f16-bare
         "e801929e51f6632368f3d2a04e2a7fc5", "0a28062941d891a8f6b08d3a8210f6d5"},
        {"a116cfc231e77b44ff3abb04f8d2b81f", "023160f3c2ec56df7941537f9e85de2a", // moments
         "17c0334840aaa1cc3d41367209b7fcc3", "be6579dd00e8af8c2f1f618e7b830154"},
        {"e0989785aee7491ec3d4ec3956e9159a", "03242a71affda8ca1124389b04f10bf4", // all
         "469def4f985118b8295f5e8bf2250592", "2b3ef1b4f41e7dbdc1bcfa665be45213"},
    },
    {
        // nesterov
        {"a67fdf08d1c114389009819f1516b0a0", "d7d7a616eb093ffbfde7e2c8fce60a68", // f32
         "2eae2d3e1382ec2ea3503bba2a8bd770", "ab818b297a9ad1fcc01ee894d94090ac"},
        {"8083ffbcadea9aa9a5c76e9abb5f2661", "2aeb62e95e320a62ce4592502ca2818a", // bf16
         "6b9be210f19b036c44f2a52b6dc34ac0", "f9ac3619b780380f420c6aab0192a022"},
        {"8e50b475a893e7c3e976807704ee3ca0", "6da78f37e29a774626c955df230b62c2", // f16
         "d7e724f5b3041b6d35bac950a418ca5b", "55d044c63185be99f89c95f53b0fb210"},
        {"6e546f166c79a88f6bcdc6cc13118f0e", "6a33813ccb25ceebbbbea2863f7ba993", // wires
         "0198c4d5ebdf387d15abc75dc85a381b", "e3c7baf177372aa4bb616b4336b1ab40"},
        {"a07e26cef7e811638205483647dd8056", "15de1ce73b26b8a7e2a1bb678fcd5575", // bf16-bare
         "333b3068002192d8c3d94c2ef8ef5aed", "a625fb24e96c279dda7d97db4c5ab529"},
        {"8d160991fc043d8a44e93419bb21e938", "ffc2a6bf1bf2123accad332cc043cb9e", // f16-bare
         "64b917485f78021860134e8e8f385591", "ca8721fe9adaa859e725bd87c0af69f9"},
        {"e4811ef6ab10a0e05d3f0be051dce87e", "1bd1c2910524780a663a8f2b300f0a9f", // moments
         "a037d9278955755e21f22818fb1a3f20", "2d4452be25f5d7d6fe1c557cb51014dd"},
        {"a1f291ac6d5949c3bf97c26557637bd6", "b3f001a390b8bb9e44e008ed82e2602a", // all
         "6a95602dc021c1cc4de7244fa464c02c", "845788e9fe28804a4507e5abe73ce61b"},
    },
    {
        // lion
        {"1ca75ea0e6aaef96f9f5cb63773ea0f2", "b39b6162cfcb13d26fa33b71c8c18c6b", // f32
         "9cd5b4f4e84274a2a29a8b93a7499ee2", "36887d85e4c59e5675b066d69993e446"},
        {"017815c7bfa8582d97eb0fa71a135ca5", "79282753f03716bfa960e5a7e453a3e0", // bf16
         "fe1484a5e0bcab987feb12c24beea305", "a91e8b29fe9ae5b0580eeaa549fa9f6a"},
        {"1fad09b4409e10d2104c4e04e6ec4481", "d701afa4894bd94c8b4e99a52db2f546", // f16
         "48dead18319c5798951682b1f0927cad", "df818f6df1dec271fbcc021f4e6be496"},
        {"3ba3763f8ca93eb701ae48a86d172914", "c82427b9159c994c3d5727b081ddc4d4", // wires
         "ff616d7d60fd02ffa7424e68dcdfc025", "324578ebedf39284f2957e7f24425c8b"},
        {"cb6c2de32a7de2cd38dd68d0ace9c52b", "90e6b9d6462f32bb697d6698a5be7238", // bf16-bare
         "996ce3f3e86341baf4387e477d19af2c", "ec245035cec9b373cb53cd322e54124d"},
        {"ed6c6d6756597ef876cefd0740eb289d", "17550d0b8a08d39be9962e40265923b8", // f16-bare
         "538c1c5169bef8169494181b8bc36800", "9b46da25d9181d2d9adb94dfc891845b"},
        {"3a5f2f7380c2e9c412f11e04c302f701", "1771dbb876b5bdaa55a654114bfbe8e8", // moments
         "15af15cd89e0efa3e38546e249305214", "c5a4a01b90b193c5cf50afcf3f0bc1e4"},
        {"dd6b6c3ba7b1615d38de4ba26dea4cfc", "50cd3cc9222f9c7e4bb427c7f087a747", // all
         "5ebb4ddef73eb79350a165fe835b0d95", "071b8d5d206faf4ef61dd0995d2ca939"},
    },
    {
        // adagrad
        {"98bc40745f9625b55004e16cad8d519d", "a054b402b8d1f4666514fdc3f836bbed", // f32
         "8e6047fe63d03f7a6a708514f45ae77c", "73e0af51271912a3eb669c33b41d00c8"},
        {"b23809ea801ed578187297d23c39235d", "4a76bc7a344efaf657ae6218079e057f", // bf16
         "c5045c7b2d21b35cda45644ab7e4073d", "37ffa60dfea70e0809fa1c44ea6ef1d9"},
        {"3a7822f21c8169aa6166cb910b39252d", "66ceef6bc8f987f832badb07f3779bae", // f16
         "1df65e2a12cabb6d3e3ed392d89dc7dd", "8ae105b01afab3c23f62587cb3ef9f45"},
        {"9990f769cbe57ae822fc7bc3020a5396", "962d3d136b359df33c42aa4f5c3aebcf", // wires
         "13cb225eb7e1c34c9836e13be88245b5", "cb482f75839d28f0d9a210f28a269d62"},
        {"4fad11565b8e4ece041fa65fa7fc6e1b", "9249e834e0fddbcf90367e7a3097d666", // bf16-bare
         "11074a16cd48d710ed1874d8625dde98", "8336597a89b80220f29120a2bbef50ff"},
        {"3f9285d35c4395dbf4b1a9541b024e4e", "45f8ae6f70090fd710b770455844c0b9", // f16-bare
         "fc15c43bcb6346cf33d513330976f03f", "f2f3bf55584cff39f79201163aeb7d6a"},
        {"3058655e04897ae21054fc24868b204a", "8f4e4ba7eaf10b04b086100053c73648", // moments
         "0d86e76dcd85935a90ec6e1b9045ae36", "4185c9a18b35452d87a24c20cb9bd6f7"},
        {"cc41fdc21f3cf77c2d814fb578553b20", "557a8956548d9bdd468a80f754686680", // all
         "652598c158059a0d824a3ffbcb59d799", "48a75d54bb4ad8df2364604b05b236a1"},
    },
    {
        // two
        {"b8899e7f907195fde92e863b18837152", "2768f56e8bbfa158777f10539c44a5b8", // f32
         "db4071f57d9b15140f651b4df5183a8f", "74983367cb0adc297bd6c2bd7e3f1e08"},
        {"08416d2a7d51c2b0bc0f0c3f2dd91701", "e09dc207d39db92bc132249e97cce5ab", // bf16
         "8a0376b57380e1881286cfc568420d83", "691f4fbd6ddbce998b1f37ba2d782eee"},
        {"801e69a99eaac8ced0a2c77d847f3d6f", "f81df420e893fc0279f66af6a51df594", // f16
         "08d3cd470066cdd50438cad51248e578", "7e75abd5c502cbaf77ae0ecdb54a1445"},
        {"7248d6b0bdaaeb7e5a0789c1a1e08fbd", "968557428c97fd161bcd3a214c568650", // wires
         "c087687675b1e6b4c07030cc5f8657b5", "cb96572e67b5438f8d699b87aa8f5b12"},
        {"d3e0c41331c954499fc48eee5ba3aaf4", "968faaef20aed4a24c3ab3a195c8e3eb", // bf16-bare
         "75a42b5d6e0f2762c078f820e2d2d8de", "e0bd630feb1badf6a8409342d8027e02"},
        {"b2c00202e859fc3889c73d604b57b4ab", "f1f49623f31b62da7a037b7f0ee195a3", // f16-bare
         "3da62e899cc3e3cbfb97d51b5e861e17", "0bc0dbe0a4eab71a972f9fa73e5346d4"},
        {"4fdb8cca089ac90eb5b60b5ee9604bb7", "e16ca62332d91bc0ccbee5a8c2f0e216", // moments
         "057718ac8593b9c8f7023498ae04e4d8", "aca018d54b1a1592b9fc949c3e43c4ea"},
        {"f85ba7117c73b55e077ec6c6048ba80b", "04703a8ff8a41d3318b68175b1a63ed5", // all
         "fe57529f1fa2a827e41ee4488653c405", "92909aad05b1d38a5f3d4152d343cb8e"},
    },
};

const char *matrix_golden(int optimizer, int precision, int policy)
{
    return golden[optimizer][precision][policy];
}
